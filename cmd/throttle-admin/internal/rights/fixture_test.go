package rights

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// guarded are the stores of a test in which only users with passwords may do anything: an etcd with
// auth, and a Redis whose default user is off.
type guarded struct {
	t     *testing.T
	etcd  *services.EtcdNode
	redis *services.RedisProcess
	dir   string // of the files with passwords
}

const rootPassword = "Rumpelstilzchen"

// guard starts the stores.
func guard(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{
		t: t, etcd: services.Etcd(t), dir: t.TempDir(),
		redis: services.RedisServer(t, "--enable-debug-command", "yes"),
	}
	ctx, client := t.Context(), g.etcd.Client()
	_, err := client.UserAdd(ctx, "root", rootPassword)
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
	first := redis.NewClient(&redis.Options{Addr: g.redis.Addr})
	defer func() { assert.NoError(t, first.Close()) }()
	require.NoError(t, first.Do(ctx, "ACL", "SETUSER", "root", "on", ">"+rootPassword, "~*", "&*", "+@all").Err())
	require.NoError(t, first.Do(ctx, "ACL", "SETUSER", "default", "off").Err())
	return g
}

// rights runs the command for the prefix /throttle in both stores, and returns what it prints.
func (g *guarded) rights(store string, flags ...string) (out string) {
	g.t.Helper()
	url := "etcd://" + g.etcd.Endpoint
	args := append([]string{"rights", store, "--policies", url}, flags...)
	if !slices.Contains(flags, "--permits") {
		args = append(args, "--permits", url)
	}
	status, out, errs := clitest.Run(g.t.Context(), []cli.Family{Commands}, args...)
	require.Equal(g.t, cli.ExitDone, status, errs)
	return out
}

// shell runs a script in the folder of the passwords, as root in both stores.
func (g *guarded) shell(script string) {
	g.t.Helper()
	host, port, _ := strings.Cut(g.redis.Addr, ":")
	cmd := exec.CommandContext(g.t.Context(), "sh", "-ec", script)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3", "ETCDCTL_USER=root:"+rootPassword,
		"REDISCLI_AUTH="+rootPassword, "REDIS=redis-cli --user root -h "+host+" -p "+port)
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, "%s\n%s (no etcdctl, no redis-cli: run `make services`)", script, out)
	require.NotContains(g.t, string(out), "ERR")
}

// user creates a user in both stores, by the commands that the command prints.
func (g *guarded) user(name string, flags ...string) {
	g.t.Helper()
	password := filepath.Join(g.dir, name+".password")
	require.NoError(g.t, os.WriteFile(password, []byte(name+"'s-$ecret\n"), 0o600))
	g.shell(g.rights("etcd", append(flags, "--user", name)...))
	g.acl(name, flags...)
}

// acl creates or changes a user of the Redis.
func (g *guarded) acl(name string, flags ...string) {
	g.t.Helper()
	out := g.rights("redis", append(flags, "--user", name, "--permits", "redis://"+g.redis.Addr, "-o", "json")...)
	var r redisReport
	require.NoError(g.t, json.Unmarshal([]byte(out), &r))
	g.shell("$REDIS <<'END'\n" + strings.Join(r.Commands, "\n") + "\nEND\n" +
		strings.Replace(r.Password, "redis-cli", "$REDIS", 1))
}

// roles creates a user of each role's name.
func (g *guarded) roles() {
	g.t.Helper()
	for _, name := range []string{"admin", "replica", "ratekeeper", "viewer"} {
		g.user(name, "--role", name)
	}
}

// policies returns the URL of the policy store for a user.
func (g *guarded) policies(name string) string {
	return "etcd://" + name + "@" + g.etcd.Endpoint + "/throttle?password-file=" + g.password(name)
}

// permits returns the URL of a permit store for a user.
func (g *guarded) permits(store, name string) string {
	if store == "etcd" {
		return services.Patient(g.policies(name))
	}
	return services.Patient("redis://" + name + "@" + g.redis.Addr + "?password-file=" + g.password(name))
}

func (g *guarded) password(name string) string { return filepath.Join(g.dir, name+".password") }

// etcdClient returns a client of a user.
func (g *guarded) etcdClient(name string) *clientv3.Client {
	g.t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{g.etcd.Endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		Username: name, Password: g.secret(name),
	})
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = client.Close() }) // the server may be gone
	return client
}

// redisClient returns a client of a user.
func (g *guarded) redisClient(name string) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr: g.redis.Addr, Username: name, Password: g.secret(name), DisableIdentity: true,
	})
	g.t.Cleanup(func() { assert.NoError(g.t, client.Close()) })
	return client
}

func (g *guarded) secret(name string) string {
	if name == "root" {
		return rootPassword
	}
	return name + "'s-$ecret"
}

// refused returns what Redis has refused to any user since the last call.
func (g *guarded) refused() (all []string) {
	g.t.Helper()
	root := g.redisClient("root")
	ctx := context.WithoutCancel(g.t.Context())
	entries, err := root.ACLLog(ctx, 100).Result()
	require.NoError(g.t, err)
	for _, e := range entries {
		all = append(all, e.Username+": "+e.Reason+" "+e.Context+" "+e.Object)
	}
	require.NoError(g.t, root.ACLLogReset(ctx).Err())
	return all
}
