package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// outputs collects all output, that of go-redis as well.
type outputs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *outputs) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *outputs) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Printf implements the logger of go-redis.
func (o *outputs) Printf(_ context.Context, format string, v ...any) {
	_, _ = fmt.Fprintf(o, format+"\n", v...)
}

// TestNoOutputHoldsASecret supplies secrets in each way there is, to commands that succeed and to
// commands that fail, and to a Limiter, and looks for each of them in all that comes out.
func TestNoOutputHoldsASecret(t *testing.T) {
	ctx := t.Context()
	server, client := services.TLS(t)
	dir := t.TempDir()
	const etcdPassword, redisPassword, wrong = "Et+cd1-geheim", "Re+dis-geheim", "fal+sch-geheim"
	const token = "zeichen-geheim-0123456789"
	file := func(name, text string) string {
		require.NoError(t, os.WriteFile(dir+"/"+name, []byte(text+"\n"), 0o644)) //nolint:gosec // for its warning
		return dir + "/" + name
	}
	etcdFile, redisFile, wrongFile := file("etcd", etcdPassword), file("redis", redisPassword), file("wrong", wrong)
	tokens := file("tokens", "db: "+token)
	secrets := []string{etcdPassword, redisPassword, wrong, token, "geheim"}
	for _, key := range []string{server.Key, client.Key} {
		pem, err := os.ReadFile(key)
		require.NoError(t, err)
		secrets = append(secrets, strings.Split(string(pem), "\n")[1])
	}

	node := services.EtcdTLS(t, server)
	admin := node.Client()
	_, err := admin.UserAdd(ctx, "root", etcdPassword)
	require.NoError(t, err)
	_, err = admin.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = admin.AuthEnable(ctx)
	require.NoError(t, err)
	redis := services.RedisTLS(t, server, "--requirepass", redisPassword)
	_, redisAddr, _ := strings.Cut(redis.URL, "://")
	files := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	stores := [][2]string{
		{
			"etcd://root:" + etcdPassword + "@" + node.Endpoint + "/t?" + files[1:],
			"rediss://:" + redisPassword + "@" + redisAddr + "?" + files[1:],
		},
		{
			"etcd://root@" + node.Endpoint + "/t?password-file=" + etcdFile + files,
			"rediss://" + redisAddr + "?password-file=" + redisFile + files,
		},
		{ // refused
			"etcd://root:" + wrong + "@" + node.Endpoint + "/t?" + files[1:],
			"rediss://:" + wrong + "@" + redisAddr + "?" + files[1:],
		},
		{"file:" + dir + "/policies.yaml", "rediss://" + redisAddr + "?password-file=" + wrongFile + files},
		{ // neither parsed nor reached
			"etcd://root:" + wrong + "@" + node.Endpoint + "/t?colour=red",
			"redis+sentinel://:" + wrong + "@redis.invalid?master=m&sentinel-password-file=" + wrongFile,
		},
		{"etcd://root:" + wrong + "/@" + node.Endpoint, "redis://:" + wrong + "@" + redisAddr + "/nine"},
		{"file:" + dir + "/policies.yaml", "redis://:" + redisPassword + "@" + redisAddr}, // no TLS
	}
	var all outputs
	goredis.SetLogger(&all)
	command := func(env [2]string, args ...string) {
		t.Helper()
		t.Setenv(throttle.EnvPolicies, env[0])
		t.Setenv(throttle.EnvPermits, env[1])
		bounded, cancel := context.WithTimeout(ctx, throttletest.Patience)
		defer cancel()
		run(bounded, args, strings.NewReader(""), &all, &all)
	}
	const topic = "kafka://public/default/orders"
	for i, env := range stores {
		for _, args := range [][]string{
			{"set-msg-rate", topic, "1000"}, {"list"}, {"list", "-o", "json"}, {"explain", topic},
			{"explain", topic, "-o", "yaml"}, {"quota", "set", "tag:bulk", "total=1MiB"}, {"quota", "status"},
			{"explain", "tag:bulk"}, {"adopt", "--dry-run"}, {"export"}, {"export", "-o", "json"}, {"pause", topic},
			{"remove", topic},
		} {
			if i < 2 || len(args) < 3 { // the others fail, each in the same way
				command(env, args...)
			}
		}
	}

	// Every command's help, what shells complete, and secrets in the wrong place.
	var help func(cmd *cobra.Command)
	help = func(cmd *cobra.Command) {
		args := strings.Fields(cmd.CommandPath())[1:]
		command(stores[0], append(args, "--help")...)
		command(stores[0], append([]string{"__complete"}, append(args, "--")...)...)
		for _, c := range cmd.Commands() {
			help(c)
		}
	}
	help(cli.NewRoot(&cli.App{}, families...))
	policiesURL, permitsURL := stores[0][0], stores[0][1]
	for _, password := range []string{strings.Repeat("lang-geheim-", 30), "ge heim top-geheim"} {
		url := "etcd://root:" + password + "@127.0.0.1:2379/t"
		for _, args := range [][]string{
			{url}, {"list", url}, {"list", "--cluster", url}, {"list", "--output", url}, {"get", url}, {"explain", url},
			{"set", url, "messageRate=1"}, {"set", topic, url}, {"set", topic, "messageRate=" + url}, {"diff", "-f", url},
			{"rights", "redis", "--role", url}, {"rights", "redis", "--role", "viewer", "--user", url},
			{"list", "--policies", url}, {"list", "--permits", url}, {"pause", topic, "--for", url},
			{"simulate", "quota", url}, {"quota", "set", url, "total=1"}, {"quota", "set", "tag:bulk", "total=" + url},
		} {
			command(stores[0], args...)
		}
	}
	for _, args := range [][]string{
		{permitsURL}, {"list", policiesURL}, {"list", "--cluster", permitsURL}, {"list", "--output", permitsURL},
		{"get", permitsURL}, {"explain", permitsURL}, {"set", permitsURL, "messageRate=1"},
		{"list", "--policies", permitsURL}, {"explain", topic, "--permits", policiesURL + "&timeout=x"},
		{"list", "--policies-password-file", "/does/not/exist"}, {"ratekeeper", "--listen", permitsURL, "--tokens", tokens},
		{"ratekeeper", "--listen", "127.0.0.1:0", "--tokens", wrongFile}, {"list", "--polices", permitsURL},
	} {
		command(stores[0], args...)
	}

	// A ratekeeper, its metrics and answers.
	t.Setenv(throttle.EnvPolicies, stores[1][0])
	t.Setenv(throttle.EnvPermits, stores[1][1])
	running, stop := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		run(running, []string{"ratekeeper", "--listen", "127.0.0.1:0", "--tokens", tokens}, strings.NewReader(""), &all, &all)
	})
	serving := regexp.MustCompile(`serving (http://\S+)/reports`)
	require.Eventually(t, func() bool { return serving.MatchString(all.String()) }, throttletest.Patience, 10*time.Millisecond)
	base := serving.FindStringSubmatch(all.String())[1]
	for path, auth := range map[string]string{"/metrics": "", "/reports": token, "/reports?": token + "x"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(`{"backend":"x"}`))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+auth)
		got, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(&all, got.Body)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
	}

	command(stores[0], "set-msg-rate", topic, "1000")
	// Limiters: their logs, metrics, statistics and status records.
	for i, env := range stores[:4] {
		log := slog.New(slog.NewJSONHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))
		timeout := throttletest.Patience
		if i >= 2 { // the password is wrong
			timeout = 3 * time.Second
		}
		lim, err := throttle.Open(ctx, env[0], env[1], throttle.WithLogger(log), throttle.WithReplica("replica"),
			throttle.WithCacheFile(dir+"/cache"), throttle.WithOpenTimeout(timeout))
		if err != nil {
			_, _ = all.Write([]byte(err.Error()))
			continue
		}
		sub, err := lim.Subscription(topic, "billing")
		require.NoError(t, err)
		if i < 2 {
			permits, err := throttle.OpenPermits(env[1])
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				sub.TryAcquire(1) // an idle subscription is not published
				records, err := permits.Published(ctx, "standalone")
				for _, r := range records {
					_, _ = all.Write(r)
				}
				return err == nil && len(records) > 0
			}, throttletest.Patience, 50*time.Millisecond)
			require.NoError(t, permits.Close())
		}
		text, err := json.Marshal(lim.Stats())
		require.NoError(t, err)
		_, _ = all.Write(text)
		w := httptest.NewRecorder()
		metrics.Handler(lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		_, _ = io.Copy(&all, w.Body)
		require.NoError(t, lim.Close())
		cache, err := os.ReadFile(dir + "/cache")
		require.NoError(t, err)
		_, _ = all.Write(cache)
	}
	stop()
	keeping.Wait()

	text := all.String()
	t.Logf("%d bytes of output", len(text))
	for _, want := range []string{ // it did what it was to do
		"WRONGPASS", "invalid user ID or password", "goes over the network in plaintext", "mode 0644", "redis.invalid",
		`"replica":"replica"`, "throttle_ratekeeper_term", "the token is that of backend", "wrong token", "1000/s",
		"option colour", "://***", "GetMasterAddrByName",
	} {
		assert.Contains(t, text, want)
	}
	for _, secret := range secrets {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("the output has %q: %q", secret, text[max(0, i-200):min(len(text), i+200)])
		}
	}
}
