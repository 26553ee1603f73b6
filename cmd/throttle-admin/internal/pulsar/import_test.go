package pulsar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/files"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// admin runs a command with a policy file.
func admin(t *testing.T, store string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	families := []cli.Family{Commands, policies.Commands, files.Commands}
	args = append([]string{"--policies", "file:" + store}, args...)
	return clitest.Run(t.Context(), families, args...)
}

// TestPulsarImport imports the rates of a real cluster at each level that has some.
func TestPulsarImport(t *testing.T) {
	web := services.Pulsar(t).Web
	ask := func(method, path, body string) {
		t.Helper()
		url := web + "/admin/v2/" + path
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Less(t, resp.StatusCode, 300, "%s %s: %s", method, path, text)
	}
	rate := func(messages, bytes, period, relative string) string {
		return `{"dispatchThrottlingRateInMsg":` + messages +
			`,"dispatchThrottlingRateInByte":` + bytes +
			`,"ratePeriodInSecond":` + period + `,"relativeToPublishRate":` + relative + `}`
	}
	ns := "public/" + services.Name(t)
	ask("PUT", "namespaces/"+ns, "")
	ask("POST", "brokers/configuration/dispatchThrottlingRatePerTopicInByte/5000", "")
	defer ask("DELETE", "brokers/configuration/dispatchThrottlingRatePerTopicInByte", "")
	ask("POST", "namespaces/"+ns+"/dispatchRate", rate("500", "-1", "2", "false"))
	ask("POST", "namespaces/"+ns+"/subscriptionDispatchRate", rate("50", "-1", "1", "false"))
	ask("POST", "namespaces/"+ns+"/replicatorDispatchRate", rate("7", "-1", "1", "false"))
	for _, topic := range []string{"plain", "fast", "named"} {
		ask("PUT", "persistent/"+ns+"/"+topic, "")
	}
	ask("PUT", "persistent/"+ns+"/parted/partitions", "3")
	ask("PUT", "persistent/"+ns+"/parted/subscription/billing", "")
	ask("PUT", "persistent/"+ns+"/parted/subscription/audit", "")
	ask("PUT", "persistent/"+ns+"/fast/subscription/billing", "")
	ask("POST", "persistent/"+ns+"/parted/dispatchRate", rate("100", "0", "1", "true"))
	ask("POST", "persistent/"+ns+"/fast/dispatchRate",
		`{"dispatchThrottlingRateInMsg":0,"dispatchThrottlingRateInByte":-1}`)
	ask("POST", "persistent/"+ns+"/fast/subscriptionDispatchRate",
		rate("20", "4096", "60", "false"))
	ask("POST", "persistent/"+ns+"/parted/billing/dispatchRate", rate("11", "-1", "1", "false"))

	store := filepath.Join(t.TempDir(), "policies.yaml")
	status, out, errs := admin(t, store, "set-msg-rate", ns, "7")
	require.Zero(t, status, out+errs)
	args := []string{"pulsar", "import", "--web", web, "--namespace", ns}
	status, out, errs = admin(t, store, args...)
	require.Zero(t, status, errs)
	assert.Regexp(t, "messageRate +7/s +500/2s", out)
	assert.Contains(t, out, "to store these changes, add --yes")
	assert.Contains(t, errs, "relativeToPublishRate was left out")
	assert.Contains(t, errs, "replicatorDispatchRate")
	stored, err := os.ReadFile(store)
	require.NoError(t, err)
	assert.NotContains(t, string(stored), "500/2s", "nothing is stored")

	status, _, errs = admin(t, store, append(args, "--yes")...)
	require.Zero(t, status, errs)
	status, out, _ = admin(t, store, "export")
	require.Zero(t, status)
	_, out, _ = strings.Cut(out, "\n") // the revision
	assert.Equal(t, strings.ReplaceAll(`schema: 2
policies:
  - scope: cluster
    byteRate: 5000/s
  - scope: NS
    messageRate: 500/2s
    byteRate: 0
  - scope: persistent://NS/parted
    messageRate: 100/s
    byteRate: 0
  - scope: persistent://NS/fast
    subscription: billing
    messageRate: 20/1m
    byteRate: 4096/1m
  - scope: persistent://NS/parted
    subscription: audit
    messageRate: 50/s
  - scope: persistent://NS/parted
    subscription: billing
    messageRate: 11/s
`, "NS", ns), out)
	status, out, _ = admin(t, store, append(args, "--yes")...)
	require.Zero(t, status)
	assert.Contains(t, out, "no changes")
}

// TestPulsarImportFaults: an answer that cannot be read is an error with its path; nothing is
// stored.
func TestPulsarImportFaults(t *testing.T) {
	answer := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answer[r.URL.Path]
		switch {
		case text == "401":
			w.WriteHeader(http.StatusUnauthorized)
		case text == "500":
			w.WriteHeader(http.StatusInternalServerError)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = io.WriteString(w, text)
		}
	}))
	defer server.Close()
	const runtime = "/admin/v2/brokers/configuration/runtime"
	store := filepath.Join(t.TempDir(), "policies.yaml")
	args := []string{"pulsar", "import", "--yes", "--web", server.URL}
	for _, c := range []struct {
		path, text string
		more       []string
		status     int
		want       string
	}{
		{runtime, "401", nil, cli.ExitFailed, "GET " + runtime},
		{runtime, "401", nil, cli.ExitFailed, "--token-file"},
		{runtime, "500", nil, cli.ExitFailed, "GET " + runtime},
		{runtime, "{", nil, cli.ExitFailed, "GET " + runtime},
		{runtime, `{"dispatchThrottlingRatePerTopicInMsg":"x"}`, nil, cli.ExitFailed, "invalid"},
		{runtime, `{"dispatchThrottlingRateInMsg":"5"}`, nil, cli.ExitDone, "topics of a broker"},
		{runtime, `{"dispatchThrottlingRatePerReplicatorInByte":"6"}`, nil, cli.ExitDone, "left"},
		{runtime, "401", []string{"--namespace", "public/none"}, cli.ExitFailed, "not found"},
		{runtime, "{}", []string{"--namespace", "orders"}, cli.ExitUsage, "invalid namespace"},
		{runtime, "{}", []string{"--web", "pulsar://h:6650"}, cli.ExitUsage, "invalid web service"},
		{runtime, "{}", []string{"--web", "http://user:secret@h"}, cli.ExitUsage, "has an @"},
		{runtime, "{}", []string{"--web", "pulsar://user:secret@h"}, cli.ExitUsage, "has an @"},
		{runtime, "{}", []string{"--web", "http://h?token=secret"}, cli.ExitUsage, "or a ?"},
	} {
		clear(answer)
		answer["/admin/v2/tenants"] = "[]"
		answer[c.path] = c.text
		status, out, errs := admin(t, store, append(args, c.more...)...)
		assert.Equal(t, c.status, status, "%+v: %s", c, errs)
		assert.Contains(t, errs, c.want, "%+v: %s", c, out)
		assert.NotContains(t, errs, "secret")
		assert.NoFileExists(t, store)
	}
	server.Close()
	status, _, errs := admin(t, store, args...)
	assert.Equal(t, cli.ExitFailed, status)
	assert.Contains(t, errs, "check --web")
}

// TestPulsarImportFromAnotherServer: a server without Pulsar's paths is not a Pulsar without
// rates.
func TestPulsarImportFromAnotherServer(t *testing.T) {
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	answering := func(text string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, text)
		}))
	}
	empty := answering("{}")
	defer empty.Close()
	page := answering("<html>")
	defer page.Close()
	for name, web := range map[string]string{
		"404":        missing.URL,
		"{}":         empty.URL,
		"page":       page.URL,
		"etcd":       "http://" + services.Etcd(t).Endpoint,
		"wrong path": services.Pulsar(t).Web + "/admin/v2",
	} {
		for _, more := range [][]string{nil, {"--namespace", "public/default"}, {"--yes"}} {
			store := filepath.Join(t.TempDir(), "policies.yaml")
			args := append([]string{"pulsar", "import", "--web", web}, more...)
			status, out, errs := admin(t, store, args...)
			assert.Equal(t, cli.ExitFailed, status, "%s %v: %s%s", name, more, out, errs)
			assert.Empty(t, out)
			assert.Contains(t, errs, "check --web", name)
			assert.NoFileExists(t, store)
		}
	}
}
