package quotas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
)

// A keeper is a process of `throttle-admin ratekeeper`.
type keeper struct {
	name       string
	url, token string // for reports
	log        string // file

	t   *testing.T
	cmd *exec.Cmd
}

// startKeeper starts a ratekeeper, and returns when it accepts reports.
func (dep *deployment) startKeeper(name string) *keeper {
	dep.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(dep.t, err)
	address := l.Addr().String()
	require.NoError(dep.t, l.Close())
	directory := dep.t.TempDir()
	k := &keeper{name: name, url: "http://" + address + "/reports", token: "open sesame", log: filepath.Join(directory, "log"), t: dep.t}
	tokenFile := filepath.Join(directory, "token")
	require.NoError(dep.t, os.WriteFile(tokenFile, []byte(k.token+"\n"), 0o600))
	log, err := os.Create(k.log)
	require.NoError(dep.t, err)
	k.cmd = exec.Command(admin, "ratekeeper", "--name", name, "--listen", address, "--token-file", tokenFile)
	k.cmd.Env, k.cmd.Stderr = append(os.Environ(), dep.env()...), log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(dep.t, k.cmd.Start())
	dep.t.Cleanup(func() {
		k.signal(syscall.SIGKILL)
		_ = k.cmd.Wait() // killed
		log.Close()
		if dep.t.Failed() {
			text, _ := os.ReadFile(k.log)
			dep.t.Logf("ratekeeper %s: ...%s", name, text[max(0, len(text)-4000):])
		}
	})
	require.Eventually(dep.t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond, "the ratekeeper does not listen")
	return k
}

// logged returns the log so far.
func (k *keeper) logged() string {
	text, err := os.ReadFile(k.log)
	require.NoError(k.t, err)
	return string(text)
}

// signal sends a signal to a process, which may have ended.
func (k *keeper) signal(s syscall.Signal) { _ = k.cmd.Process.Signal(s) }

// A pagesReader is a process that reads messages of six pages as fast as its quota allows.
type pagesReader struct {
	Topic string
}

const pages = 6

func (r pagesReader) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	sub, err := lim.Subscription(r.Topic, "billing")
	if err != nil {
		return err
	}
	broker, err := lim.Backend("broker", "a")
	if err != nil {
		return err
	}
	for {
		g, err := sub.Acquire(ctx, 1)
		if err != nil {
			return lim.Close()
		}
		g.Done(1, pages*quota.Page)
		broker.Read(sub, pages*quota.Page)
		fleet.Print(fleet.Read, "-")
	}
}

const orders = "kafka://acme/default/orders"

var acme = policy.TenantScope("acme")

// readers starts two processes with a quota of rate messages a second together.
func (dep *deployment) readers(rate int64) fleet.Fleet {
	dep.t.Helper()
	dep.set(map[policy.Scope]policy.Policy{acme: {TotalThroughput: new(rate * pages * quota.Page)}})
	var f fleet.Fleet
	for i := range 2 {
		f = append(f, fleet.Start(dep.t, i, "", dep.as(readerEnv, pagesReader{fmt.Sprint(orders, i)})))
	}
	return f
}

// settled waits until the ratekeeper knows the cost of a message.
func (dep *deployment) settled() {
	dep.t.Helper()
	require.Eventually(dep.t, func() bool {
		found := dep.rates().Rates[quota.ID(acme.String())]
		return found.Average > 0.97*pages*quota.Page && found.Average < 1.03*pages*quota.Page
	}, 60*time.Second, 100*time.Millisecond, "the cost of a message is not known")
	time.Sleep(2 * time.Second) // until all replicas apply it
}

// A watcher collects each record of rates; there is one a second.
type watcher struct {
	mu      sync.Mutex
	records []record
}

type record struct {
	dispatch.Rates
	at time.Time
}

func (dep *deployment) watch() *watcher {
	of := &watcher{}
	ctx, cancel := context.WithCancel(dep.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			text, _, err := dep.permits.Value(ctx, permits.RatesKey(dep.cluster))
			var r dispatch.Rates
			if err == nil && len(text) > 0 && assert.NoError(dep.t, json.Unmarshal(text, &r)) {
				of.see(r)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	dep.t.Cleanup(func() { cancel(); watching.Wait() })
	return of
}

func (of *watcher) see(r dispatch.Rates) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if n := len(of.records); n == 0 || !of.records[n-1].same(r) {
		of.records = append(of.records, record{r, time.Now()})
	}
}

func (r record) same(as dispatch.Rates) bool {
	return r.Term == as.Term && r.Time == as.Time && r.Keeper == as.Keeper
}

func (of *watcher) all() []record {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.records)
}

// check requires that no record has an older term or time than the one before.
func (of *watcher) check(t *testing.T) {
	all := of.all()
	require.NotEmpty(t, all)
	for i, r := range all[1:] {
		before := all[i]
		assert.GreaterOrEqual(t, r.Term, before.Term, "term, of %s after %s", r.Keeper, before.Keeper)
		assert.Greater(t, r.Time, before.Time, "time, of %s after %s", r.Keeper, before.Keeper)
	}
	t.Logf("%d records, of terms %d to %d", len(all), all[0].Term, all[len(all)-1].Term)
}

// by returns the first record of a keeper.
func (of *watcher) by(name string) (r record, ok bool) {
	all := of.all()
	if i := slices.IndexFunc(all, func(r record) bool { return r.Keeper == name }); i >= 0 {
		return all[i], true
	}
	return record{}, false
}

// takeover bounds the time until another ratekeeper leads: etcd's lease of 5 s, 2 s, and 3 s for
// pauses of the machine.
const takeover = 10 * time.Second

// pair starts two ratekeepers, the first of which leads, and two readers.
func (dep *deployment) pair() (first, second *keeper, replicas fleet.Fleet, records *watcher) {
	dep.t.Helper()
	replicas = dep.readers(100)
	records = dep.watch()
	first = dep.startKeeper("first")
	require.Eventually(dep.t, func() bool { _, ok := records.by("first"); return ok }, 20*time.Second, 50*time.Millisecond, "no ratekeeper leads")
	second = dep.startKeeper("second")
	dep.settled()
	return first, second, replicas, records
}

// takenOver waits until the second leads, and compares its first record with the last one of the
// first.
func (dep *deployment) takenOver(records *watcher, since time.Time) {
	t := dep.t
	t.Helper()
	require.Eventually(t, func() bool { _, ok := records.by("second"); return ok }, 30*time.Second, 10*time.Millisecond, "no ratekeeper took over")
	next, _ := records.by("second")
	all := records.all()
	before := all[slices.IndexFunc(all, func(r record) bool { return r.Keeper == "second" })-1]
	id := quota.ID(acme.String())
	was, is := before.Rates.Rates[id], next.Rates.Rates[id]
	t.Logf("took over after %v, %v after the last record; rate %.1f/s of %.0f bytes, then %.1f/s of %.0f bytes",
		next.at.Sub(since).Round(time.Millisecond), next.at.Sub(before.at).Round(time.Millisecond), was.Rate, was.Average, is.Rate, is.Average)
	assert.LessOrEqual(t, next.at.Sub(since), takeover)
	assert.Equal(t, "first", before.Keeper)
	assert.Greater(t, next.Term, before.Term)
	assert.InEpsilon(t, was.Average, is.Average, 0.05, "it continues with the stored average")
	assert.InEpsilon(t, was.Rate, is.Rate, 0.05, "likewise")
}

// TestAnotherRatekeeperTakesOver: the leader is killed, and rates stay the same.
func TestAnotherRatekeeperTakesOver(t *testing.T) {
	t.Parallel()
	dep := newDeployment(t)
	first, _, replicas, records := dep.pair()
	first.signal(syscall.SIGKILL)
	killed := time.Now()
	dep.takenOver(records, killed)
	time.Sleep(3 * time.Second)
	records.check(t)
	d := time.Since(killed)
	n := float64(fleet.Between(replicas.Messages(""), killed, killed.Add(d))) / d.Seconds()
	t.Logf("%.1f messages a second throughout", n)
	assert.LessOrEqual(t, n, 110.0)
	assert.GreaterOrEqual(t, n, 60.0, "replicas continue without a leader, but for pauses of the machine")
}

// TestAStoppedRatekeeperWritesNothing: the leader is stopped for eight seconds. When it continues,
// another leads, and its own rates are too late.
func TestAStoppedRatekeeperWritesNothing(t *testing.T) {
	t.Parallel()
	dep := newDeployment(t)
	first, second, _, records := dep.pair()
	first.signal(syscall.SIGSTOP)
	stopped := time.Now()
	dep.takenOver(records, stopped)
	time.Sleep(time.Until(stopped.Add(8 * time.Second)))
	first.signal(syscall.SIGCONT)
	time.Sleep(5 * time.Second)
	records.check(t)
	all := records.all()
	assert.Equal(t, "second", all[len(all)-1].Keeper)
	assert.Contains(t, first.logged(), "leads no more")
	assert.NotContains(t, second.logged(), "leads no more")

	// It is a candidate again, and leads after the other.
	second.signal(syscall.SIGKILL)
	killed := time.Now()
	require.Eventually(t, func() bool { all := records.all(); return all[len(all)-1].Keeper == "first" }, 2*takeover, 10*time.Millisecond)
	all = records.all()
	t.Logf("led again after %v", all[len(all)-1].at.Sub(killed).Round(time.Millisecond))
	assert.LessOrEqual(t, all[len(all)-1].at.Sub(killed), takeover)
	records.check(t)
}

// TestQuotaSetIsObeyed: two seconds after `quota set`, replicas apply a higher or lower quota.
func TestQuotaSetIsObeyed(t *testing.T) {
	t.Parallel()
	dep := newDeployment(t)
	replicas := dep.readers(200)
	dep.startKeeper("keeper")
	dep.settled()
	before := 200.0
	for _, rate := range []int{50, 150, 0, 100} {
		set := func(rate int) {
			dep.admin("quota", "set", acme.String(), "total_throughput", fmt.Sprint(rate*pages*quota.Page))
		}
		try := 0
		loosely.Hold(t, func(loose assert.TestingT) {
			const d = 3 * time.Second
			if try++; try > 1 {
				set(int(before))
				time.Sleep(d)
			}
			set(rate)
			time.Sleep(2 * time.Second)
			from := time.Now()
			time.Sleep(d)
			n := fleet.Between(replicas.Messages(""), from, from.Add(d))
			t.Logf("from %.0f/s to %d/s: %.1f/s", before, rate, float64(n)/d.Seconds())
			assert.LessOrEqual(loose, float64(n), float64(rate)*1.03*(d.Seconds()+0.25), "rate x (d + 0.25 s), and 3 % between the counts of costs and of starts")
			assert.GreaterOrEqual(loose, float64(n), float64(rate)*0.9*d.Seconds())
		})
		before = float64(rate)
	}
}
