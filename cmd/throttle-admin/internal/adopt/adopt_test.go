package adopt_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/adopt"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/files"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A desk is where an operator runs throttle-admin, with a policy store that is empty at first.
type desk struct {
	t                 *testing.T
	policies, permits string // URLs
}

func newDesk(t *testing.T) *desk {
	return &desk{t, "etcd://" + services.Etcd(t).Endpoint, services.Patient(services.Redis(t))}
}

// replica publishes what a replica that follows policies does.
func (d *desk) replica(name, id string, epoch int64) {
	d.publish(dispatch.Stats{Replica: name, Identity: id, Epoch: epoch})
}

func (d *desk) publish(s dispatch.Stats) {
	store, err := throttle.OpenPermits(d.permits)
	require.NoError(d.t, err)
	text, err := json.Marshal(s)
	require.NoError(d.t, err)
	require.NoError(d.t, store.Publish(d.t.Context(), "standalone", s.Replica, text, time.Minute))
	require.NoError(d.t, store.Close())
}

func (d *desk) run(args ...string) (status int, out, errs string) {
	if args[0] == "adopt" {
		args = append(args, "--yes")
	}
	args = append(args, "--policies", d.policies, "--permits", d.permits)
	return clitest.Run(d.t.Context(), []cli.Family{adopt.Commands, policies.Commands, files.Commands}, args...)
}

func (d *desk) succeeds(args ...string) string {
	d.t.Helper()
	status, out, errs := d.run(args...)
	require.Zero(d.t, status, "%s", errs)
	return out
}

func (d *desk) fails(want string, args ...string) {
	d.t.Helper()
	status, out, errs := d.run(args...)
	assert.Equal(d.t, cli.ExitFailed, status, "%s", out)
	assert.Contains(d.t, errs, want)
}

// adopted adopts, and returns what is printed.
func (d *desk) adopted(args ...string) (r struct {
	ID       string
	Epoch    int64
	Policies int
	Restart  string
},
) {
	d.t.Helper()
	text := d.succeeds(append([]string{"adopt", "-o", "json"}, args...)...)
	require.NoError(d.t, json.Unmarshal([]byte(text), &r))
	return r
}

// TestFirstChange: the first change of an empty store is refused while replicas follow the policies
// of another one. Made without the permit store, it is followed once it is adopted.
func TestFirstChange(t *testing.T) {
	d := newDesk(t)
	d.replica("billing-1", "known", 5)
	set := []string{"set", "kafka://public/default/orders", "messageRate=7"}
	d.fails("the policy store is empty, and 1 replica of the cluster follows policies of another store, "+
		"known: billing-1", set...)
	d.fails("hint: check --policies and its prefix", set...)
	d.fails("the policy store is empty: its replicas would lose all limits", "adopt")

	permits := d.permits
	d.permits = ""
	d.succeeds(set...)
	d.permits = permits
	d.fails("running replicas and the policy store have several ids: known (1 replica), ", "adopt")
	r := d.adopted("--id", "known")
	assert.Equal(t, "known", r.ID)
	assert.Equal(t, 1, r.Policies)
	assert.NotEmpty(t, r.Restart)
	d.succeeds(set...)
}

// TestFirstChangeWithoutID: replicas that keep policies without an id would follow the first change
// of an empty store, and lose what is not in it.
func TestFirstChangeWithoutID(t *testing.T) {
	d := newDesk(t)
	set := []string{"set", "kafka://public/default/orders", "messageRate=7"}
	held := dispatch.Stats{Replica: "billing-1", Revision: 2000, PoliciesHeld: true, PolicyError: "it is empty"}
	d.publish(held)
	d.succeeds(append(set, "--dry-run")...) // it has nothing to lose
	held.Policies = 1
	d.publish(held)
	d.fails("the policy store is empty, and 1 replica keeps the policies of revision 2000 (billing-1): it is empty", set...)
	d.fails("throttle-admin apply -f FILE --permits ''", set...)
	d.permits = ""
	d.succeeds(set...)
}

// TestLostPolicies: policies that an etcd has lost, with its marker left, are set again while the
// replicas keep them.
func TestLostPolicies(t *testing.T) {
	node := services.Etcd(t)
	d := &desk{t, "etcd://" + node.Endpoint, services.Patient(services.Redis(t))}
	d.succeeds("set", "cluster", "messageRate=7")
	lim, err := throttle.Open(t.Context(), d.policies, d.permits)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, lim.Close()) })
	_, err = lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	rate := func() float64 { return lim.Stats().Subscriptions[0].Limits[0].Rate }
	id := lim.Stats().Identity
	_, err = node.Client().Delete(t.Context(), "/throttle/config/policies", clientv3.WithPrefix())
	require.NoError(t, err)
	keeps := func(reason string) {
		throttletest.Until(t, reason, func() bool { return strings.Contains(lim.Stats().PolicyError, reason) })
		assert.InDelta(t, 7, rate(), 0)
	}
	keeps("has lost its policies (1)")
	d.fails("has lost its policies (1)", "set", "cluster", "messageRate=5")
	d.succeeds("adopt", "--empty", "--id", "interim")
	keeps("has policies \"interim\"")
	d.succeeds("set", "cluster", "messageRate=5")
	d.succeeds("set", "public/default", "messageRate=6")
	time.Sleep(200 * time.Millisecond)
	keeps("has policies \"interim\"")
	d.succeeds("adopt", "--id", id)
	throttletest.Until(t, "the new policies are in force", func() bool { return lim.Ready() == nil && rate() == 6 })
}

// TestAdoptEmpty: an empty store is adopted for replicas that know policies only with --empty.
func TestAdoptEmpty(t *testing.T) {
	d := newDesk(t)
	assert.Zero(t, d.adopted().Policies, "no replica loses anything")
	d = newDesk(t)
	d.replica("billing-1", "known", 5)
	d.fails("hint: restore the policies, or confirm with --empty", "adopt")
	d.fails("hint: restore the policies, or confirm with --empty", "adopt", "--id", "known")
	assert.Equal(t, "known", d.adopted("--empty").ID)
}

// TestEmptiedOnPurpose: commands that leave no policy are in force at once, without an adoption.
func TestEmptiedOnPurpose(t *testing.T) {
	const topic = "kafka://public/default/orders"
	file := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte("schema: 2\npolicies: []\n"), 0o600))
	for _, args := range [][]string{{"remove", topic}, {"apply", "-f", file}} {
		d := newDesk(t)
		d.succeeds("set", topic, "messageRate=7")
		lim, err := throttle.Open(t.Context(), d.policies, d.permits)
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "billing")
		require.NoError(t, err)
		require.NotEmpty(t, lim.Stats().Subscriptions[0].Limits)
		d.succeeds(args...)
		throttletest.Until(t, "no limit is left", func() bool { return len(lim.Stats().Subscriptions[0].Limits) == 0 })
		assert.NoError(t, lim.Ready(), "%v", args)
		assert.NoError(t, sub.Close())
		assert.NoError(t, lim.Close())
	}
}

// TestSeveralIDs: replicas that know policies of several ids are not all served by one adoption.
func TestSeveralIDs(t *testing.T) {
	d := newDesk(t)
	d.replica("billing-1", "a", 5)
	d.replica("billing-2", "a", 5)
	d.replica("orders-1", "b", 5)
	d.fails("running replicas and the policy store have several ids: a (2 replicas), b (1 replica)",
		"adopt", "--empty")
	assert.Equal(t, "b", d.adopted("--empty", "--id", "b").ID)
}

// TestEpochOfReplicas: the new epoch is later than those that replicas have followed under the id,
// even if a clock was ahead then.
func TestEpochOfReplicas(t *testing.T) {
	d := newDesk(t)
	ahead := time.Now().Add(time.Hour).UnixMilli()
	d.replica("billing-1", "a", ahead)
	d.replica("billing-2", "a", 5)
	assert.Equal(t, ahead+1, d.adopted("--empty").Epoch)
	assert.Equal(t, ahead+101, d.adopted("--empty", "--after", fmt.Sprint(ahead+100)).Epoch)
}

// TestForgedStatus: a forged status record cannot have the store adopted under another id, or with
// an epoch that no replica follows.
func TestForgedStatus(t *testing.T) {
	d := newDesk(t)
	set := []string{"set", "kafka://public/default/orders", "messageRate=7"}
	d.succeeds(set...)
	id := d.adopted().ID
	d.replica("forged", id, time.Now().Add(1000*time.Hour).UnixMilli())
	_, _, errs := d.run("adopt")
	assert.Contains(t, errs, "epochs over a day ahead of this machine's clock, stated by 1 replica, are ignored: forged")
	assert.LessOrEqual(t, d.adopted().Epoch, time.Now().UnixMilli()+10)
	d.succeeds(set...)
	d.replica("forged", "other", 5)
	d.fails("running replicas and the policy store have several ids: other (1 replica), "+id, "adopt")
	assert.Equal(t, id, d.adopted("--id", id).ID)
	after := fmt.Sprint(time.Now().Add(1000 * time.Hour).UnixMilli())
	d.fails("is over a day ahead of this machine's clock", "adopt", "--id", id, "--after", after)
	d.succeeds(set...)
}

// TestListOfUnadopted: list shows that replicas would not notice a loss of what it lists, and that
// they have noticed one.
func TestListOfUnadopted(t *testing.T) {
	node := services.Etcd(t)
	d := &desk{t, "etcd://" + node.Endpoint, services.Patient(services.Redis(t))}
	_, _, errs := d.run("list")
	assert.Empty(t, errs)
	const key = "/throttle/config/policies/cluster"
	_, err := node.Client().Put(t.Context(), key, `{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	_, _, errs = d.run("list")
	assert.Contains(t, errs, "the policy store has no marker")
	assert.Contains(t, errs, "throttle-admin adopt")
	d.adopted()
	_, _, errs = d.run("list")
	assert.Empty(t, errs)
	_, err = node.Client().Delete(t.Context(), key)
	require.NoError(t, err)
	_, _, errs = d.run("list")
	assert.Contains(t, errs, "replicas do not follow these policies: ")
	assert.Contains(t, errs, "has lost its policies (1)")
}

// TestAdoptFile: what a file holds is followed without a marker.
func TestAdoptFile(t *testing.T) {
	d := newDesk(t)
	d.policies = "file:" + filepath.Join(t.TempDir(), "policies.yaml")
	d.succeeds("set", "kafka://public/default/orders", "messageRate=7")
	d.fails("replicas follow what a file holds", "adopt")
}

// TestListOfHeld: list and its JSON name the replicas that do not follow what is listed.
func TestListOfHeld(t *testing.T) {
	d := newDesk(t)
	d.succeeds("set", "kafka://public/default/orders", "messageRate=7")
	var r struct {
		Identity string
		Held     []cli.Held
		Others   []cli.KnownID
	}
	listed := func() (errs string) {
		_, out, errs := d.run("list", "-o", "json")
		r.Held, r.Others = nil, nil
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return errs
	}
	assert.Empty(t, listed())
	assert.Empty(t, r.Held)
	d.publish(dispatch.Stats{
		Replica: "billing-1", Identity: r.Identity, Epoch: 5, Revision: 70, PoliciesHeld: true, PolicyError: "it is older",
	})
	d.publish(dispatch.Stats{
		Replica: "billing-2", Identity: r.Identity, Epoch: 5, Revision: 70, PoliciesHeld: true, PolicyError: "it is older",
	})
	d.replica("orders-1", r.Identity, 5)
	d.replica("orders-2", "an id with\nlines", 5)
	errs := listed()
	assert.Equal(t, []cli.Held{{Revision: 70, Reason: "it is older", Replicas: []string{"billing-1", "billing-2"}}}, r.Held)
	assert.Equal(t, []cli.KnownID{{ID: "an id with\nlines", Epoch: 5, Replicas: []string{"orders-2"}}}, r.Others)
	assert.Equal(t, "throttle-admin: 2 replicas keep the policies of revision 70 (billing-1, billing-2): it is older\n"+
		`throttle-admin: 1 replica of the cluster follows policies of another store, 'an id with\n`+
		"lines': orders-2\n", errs)

	d.permits = "redis://127.0.0.1:1"
	_, out, errs := d.run("list")
	assert.Contains(t, out, "messageRate=7/s", "what is stored is shown all the same")
	assert.Contains(t, errs, "whether replicas follow these policies is not known: ")
}

// TestNobodyToAsk: without a terminal and without --yes, nothing is adopted.
func TestNobodyToAsk(t *testing.T) {
	d := newDesk(t)
	status, out, errs := clitest.Run(t.Context(), []cli.Family{adopt.Commands}, "adopt", "--policies", d.policies)
	assert.Equal(t, cli.ExitUsage, status, "%s", out)
	assert.Contains(t, errs, "adopt decides which policies all replicas follow, and nobody can be asked")
	assert.Contains(t, errs, "hint: see what it would do with --dry-run, and confirm it with --yes")
}
