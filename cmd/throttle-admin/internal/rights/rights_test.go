package rights

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
)

// TestCommandsForAShell: whatever the prefix of the keys is, a shell passes it on as it is.
func TestCommandsForAShell(t *testing.T) {
	const prefix = `/a'b"c` + "`id`" + `|\$(id)#!~[x]^  d`
	url := "etcd://127.0.0.1:2379" + prefix
	status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands},
		"rights", "etcd", "--role", "viewer", "--policies", url)
	require.Equal(t, cli.ExitDone, status, errs)
	script := "etcdctl() { for arg; do echo \"[$arg]\"; done; }\n" + strings.ReplaceAll(out, " < ", " # ")
	got, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
	require.NoError(t, err, "%s", got)
	assert.Contains(t, string(got), "["+prefix+"/config/]\n")
	assert.NotContains(t, string(got), "uid=")
}

// TestSameServers: two URLs with the same endpoints, in any order, are one etcd.
func TestSameServers(t *testing.T) {
	status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "rights", "etcd", "--role", "replica",
		"--policies", "etcd://a:1,b:2", "--permits", "etcd://b:2,a:1", "-o", "json")
	require.Equal(t, cli.ExitDone, status, errs)
	var r etcdReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Servers, 1)
	assert.Equal(t, []string{"a:1", "b:2"}, r.Servers[0].Endpoints)
}
