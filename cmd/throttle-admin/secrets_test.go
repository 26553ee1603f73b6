package main

import (
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
type outputs struct{ throttletest.Log }

// Printf implements the logger of go-redis.
func (o *outputs) Printf(_ context.Context, format string, v ...any) {
	_, _ = fmt.Fprintf(o, format+"\n", v...)
}

// TestNoOutputHoldsASecret supplies secrets in each way there is, to commands that succeed and to
// commands that fail, and to a Limiter, and looks for each of them in all that comes out.
func TestNoOutputHoldsASecret(t *testing.T) {
	x := &secretive{t: t, dir: t.TempDir()}
	x.setUp()
	goredis.SetLogger(&x.all)
	x.runCommands()
	x.askForHelp()
	x.misplaceSecrets()
	stop := x.runRatekeeper()
	x.command(x.stores[0], "set-msg-rate", topic, "1000")
	x.openLimiters()
	stop()
	x.look()
}

const (
	topic = "kafka://public/default/orders"
	token = "zeichen-geheim-0123456789"
)

// secretive is what has secrets, and all output.
type secretive struct {
	t                 *testing.T
	dir               string
	stores            [][2]string // URLs of policies and permits
	secrets           []string
	tokens, wrongFile string // files
	all               outputs
}

func (x *secretive) command(env [2]string, args ...string) {
	x.t.Helper()
	x.t.Setenv(throttle.EnvPolicies, env[0])
	x.t.Setenv(throttle.EnvPermits, env[1])
	bounded, cancel := context.WithTimeout(x.t.Context(), throttletest.Patience)
	defer cancel()
	run(bounded, args, strings.NewReader(""), &x.all, &x.all)
}

// setUp starts an etcd and a Redis with passwords and certificates.
func (x *secretive) setUp() {
	t, ctx := x.t, x.t.Context()
	server, client := services.TLS(t)
	const etcdPassword, redisPassword, wrong = "Et+cd1-geheim", "Re+dis-geheim", "fal+sch-geheim"
	file := func(name, text string) string {
		require.NoError(t, os.WriteFile(x.dir+"/"+name, []byte(text+"\n"), 0o644)) //nolint:gosec // for its warning
		return x.dir + "/" + name
	}
	etcdFile, redisFile := file("etcd", etcdPassword), file("redis", redisPassword)
	x.wrongFile = file("wrong", wrong)
	x.tokens = file("tokens", "db: "+token)
	x.secrets = []string{etcdPassword, redisPassword, wrong, token, "geheim"}
	for _, key := range []string{server.Key, client.Key} {
		pem, err := os.ReadFile(key)
		require.NoError(t, err)
		x.secrets = append(x.secrets, strings.Split(string(pem), "\n")[1])
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
	x.stores = [][2]string{
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
		{"file:" + x.dir + "/policies.yaml", "rediss://" + redisAddr + "?password-file=" + x.wrongFile + files},
		{ // neither parsed nor reached
			"etcd://root:" + wrong + "@" + node.Endpoint + "/t?colour=red",
			"redis+sentinel://:" + wrong + "@redis.invalid?master=m&sentinel-password-file=" + x.wrongFile,
		},
		{"etcd://root:" + wrong + "/@" + node.Endpoint, "redis://:" + wrong + "@" + redisAddr + "/nine"},
		{"file:" + x.dir + "/policies.yaml", "redis://:" + redisPassword + "@" + redisAddr}, // no TLS
	}
}

// runCommands runs commands that succeed, and some that fail.
func (x *secretive) runCommands() {
	for i, env := range x.stores {
		for _, args := range [][]string{
			{"set-msg-rate", topic, "1000"}, {"list"}, {"list", "-o", "json"}, {"explain", topic},
			{"explain", topic, "-o", "yaml"}, {"quota", "set", "tag:bulk", "total=1MiB"}, {"quota", "status"},
			{"explain", "tag:bulk"}, {"adopt", "--dry-run"}, {"export"}, {"export", "-o", "json"}, {"pause", topic},
			{"remove", topic},
		} {
			if i < 2 || len(args) < 3 { // the others fail, each in the same way
				x.command(env, args...)
			}
		}
	}
}

// askForHelp asks for the help of all commands, and for what shells complete.
func (x *secretive) askForHelp() {
	var help func(cmd *cobra.Command)
	help = func(cmd *cobra.Command) {
		args := strings.Fields(cmd.CommandPath())[1:]
		x.command(x.stores[0], append(args, "--help")...)
		x.command(x.stores[0], append([]string{"__complete"}, append(args, "--")...)...)
		for _, c := range cmd.Commands() {
			help(c)
		}
	}
	help(cli.NewRoot(&cli.App{}, families...))
}

// misplaceSecrets gives secrets in the wrong places.
func (x *secretive) misplaceSecrets() {
	policiesURL, permitsURL := x.stores[0][0], x.stores[0][1]
	for _, password := range []string{strings.Repeat("lang-geheim-", 30), "ge heim top-geheim"} {
		url := "etcd://root:" + password + "@127.0.0.1:2379/t"
		for _, args := range [][]string{
			{url}, {"list", url}, {"list", "--cluster", url}, {"list", "--output", url}, {"get", url}, {"explain", url},
			{"set", url, "messageRate=1"}, {"set", topic, url}, {"set", topic, "messageRate=" + url}, {"diff", "-f", url},
			{"rights", "redis", "--role", url}, {"rights", "redis", "--role", "viewer", "--user", url},
			{"list", "--policies", url}, {"list", "--permits", url}, {"pause", topic, "--for", url},
			{"simulate", "quota", url}, {"quota", "set", url, "total=1"}, {"quota", "set", "tag:bulk", "total=" + url},
		} {
			x.command(x.stores[0], args...)
		}
	}
	for _, args := range [][]string{
		{permitsURL}, {"list", policiesURL}, {"list", "--cluster", permitsURL}, {"list", "--output", permitsURL},
		{"get", permitsURL}, {"explain", permitsURL}, {"set", permitsURL, "messageRate=1"},
		{"list", "--policies", permitsURL}, {"explain", topic, "--permits", policiesURL + "&timeout=x"},
		{"list", "--policies-password-file", "/does/not/exist"}, {"ratekeeper", "--listen", permitsURL, "--tokens", x.tokens},
		{"ratekeeper", "--listen", "127.0.0.1:0", "--tokens", x.wrongFile}, {"list", "--polices", permitsURL},
	} {
		x.command(x.stores[0], args...)
	}
}

// runRatekeeper runs one, and asks for its metrics and answers.
func (x *secretive) runRatekeeper() (stop func()) {
	x.t.Setenv(throttle.EnvPolicies, x.stores[1][0])
	x.t.Setenv(throttle.EnvPermits, x.stores[1][1])
	running, end := context.WithCancel(x.t.Context())
	var keeping sync.WaitGroup
	keeping.Go(func() {
		run(running, []string{"ratekeeper", "--listen", "127.0.0.1:0", "--tokens", x.tokens}, strings.NewReader(""), &x.all, &x.all)
	})
	serving := regexp.MustCompile(`serving (http://\S+)/reports`)
	require.Eventually(x.t, func() bool { return serving.MatchString(x.all.String()) }, throttletest.Patience, 10*time.Millisecond)
	base := serving.FindStringSubmatch(x.all.String())[1]
	for path, auth := range map[string]string{"/metrics": "", "/reports": token, "/reports?": token + "x"} {
		req, err := http.NewRequestWithContext(x.t.Context(), http.MethodPost, base+path, strings.NewReader(`{"backend":"x"}`))
		require.NoError(x.t, err)
		req.Header.Set("Authorization", "Bearer "+auth)
		got, err := http.DefaultClient.Do(req)
		require.NoError(x.t, err)
		_, err = io.Copy(&x.all, got.Body)
		require.NoError(x.t, err)
		require.NoError(x.t, got.Body.Close())
	}
	return func() { end(); keeping.Wait() }
}

// openLimiters adds the logs, metrics, statistics and status records of Limiters.
func (x *secretive) openLimiters() {
	for i, env := range x.stores[:4] {
		log := slog.New(slog.NewJSONHandler(&x.all, &slog.HandlerOptions{Level: slog.LevelDebug}))
		timeout := throttletest.Patience
		if i >= 2 { // the password is wrong
			timeout = 3 * time.Second
		}
		lim, err := throttle.Open(x.t.Context(), env[0], env[1], throttle.WithLogger(log), throttle.WithReplica("replica"),
			throttle.WithCacheFile(x.dir+"/cache"), throttle.WithOpenTimeout(timeout))
		if err != nil {
			_, _ = x.all.Write([]byte(err.Error()))
			continue
		}
		sub, err := lim.Subscription(topic, "billing")
		require.NoError(x.t, err)
		if i < 2 {
			permits, err := throttle.OpenPermits(env[1])
			require.NoError(x.t, err)
			require.Eventually(x.t, func() bool {
				sub.TryAcquire(1) // an idle subscription is not published
				records, err := permits.Published(x.t.Context(), "standalone")
				for _, r := range records {
					_, _ = x.all.Write(r)
				}
				return err == nil && len(records) > 0
			}, throttletest.Patience, 50*time.Millisecond)
			require.NoError(x.t, permits.Close())
		}
		text, err := json.Marshal(lim.Stats())
		require.NoError(x.t, err)
		_, _ = x.all.Write(text)
		w := httptest.NewRecorder()
		metrics.Handler(lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		_, _ = io.Copy(&x.all, w.Body)
		require.NoError(x.t, lim.Close())
		cache, err := os.ReadFile(x.dir + "/cache")
		require.NoError(x.t, err)
		_, _ = x.all.Write(cache)
	}
}

// look looks for secrets in all output, which must have what was to happen.
func (x *secretive) look() {
	text := x.all.String()
	x.t.Logf("%d bytes of output", len(text))
	for _, want := range []string{ // it did what it was to do
		"WRONGPASS", "invalid user ID or password", "goes over the network in plaintext", "mode 0644", "redis.invalid",
		`"replica":"replica"`, "throttle_ratekeeper_term", "the token is that of backend", "wrong token", "1000/s",
		"option colour", "://***", "GetMasterAddrByName",
	} {
		assert.Contains(x.t, text, want)
	}
	for _, secret := range x.secrets {
		if i := strings.Index(text, secret); i >= 0 {
			x.t.Errorf("the output has %q: %q", secret, text[max(0, i-200):min(len(text), i+200)])
		}
	}
}
