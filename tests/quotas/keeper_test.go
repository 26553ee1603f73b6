package quotas_test

import (
	"context"
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
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
)

// A keeper is a process of `throttle-admin ratekeeper`.
type keeper struct {
	name       string
	url, token string // for reports
	log        string // file name

	t   *testing.T
	cmd *exec.Cmd
}

// startKeeper starts a ratekeeper that accepts reports, and waits until it listens.
func (w *deployment) startKeeper(name string) *keeper {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	address := l.Addr().String()
	require.NoError(w.t, l.Close())
	directory := w.t.TempDir()
	k := &keeper{
		name: name, url: "http://" + address + "/reports", token: "open-sesame-of-the-sink",
		log: filepath.Join(directory, "log"), t: w.t,
	}
	tokenFile := filepath.Join(directory, "token")
	require.NoError(w.t, os.WriteFile(tokenFile, []byte("sink: "+k.token+"\n"), 0o600))
	log, err := os.Create(k.log)
	require.NoError(w.t, err)
	k.cmd = exec.Command(admin, "ratekeeper", "--name", name, "--listen", address, "--tokens", tokenFile)
	k.cmd.Env, k.cmd.Stderr = append(os.Environ(), w.env()...), log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(w.t, k.cmd.Start())
	w.t.Cleanup(func() {
		k.signal(syscall.SIGKILL)
		_ = k.cmd.Wait() // killed
		log.Close()
		if w.t.Failed() {
			text, _ := os.ReadFile(k.log)
			w.t.Logf("ratekeeper %s: ...%s", name, text[max(0, len(text)-4000):])
		}
	})
	require.Eventually(w.t, func() bool {
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

// A pageReader is a process that reads messages of six pages at the limit.
type pageReader struct {
	Topic string
}

const pages = 6

func (r pageReader) run() error {
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

// replicas starts two replicas that share a quota of rate messages a second.
func (w *deployment) replicas(rate int64) fleet.Fleet {
	w.t.Helper()
	w.set(map[policy.Scope]policy.Settings{acme: policy.Quota{Total: new(rate * pages * quota.Page)}})
	var f fleet.Fleet
	for i := range 2 {
		f = append(f, fleet.Start(w.t, i, "", w.as(replicaEnv, pageReader{fmt.Sprint(orders, i)})))
	}
	return f
}

// settled waits until the ratekeeper knows the cost of a message.
func (w *deployment) settled() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		found := w.rates().Rates[quota.ID(acme.String())]
		return found.Average > 0.97*pages*quota.Page && found.Average < 1.03*pages*quota.Page
	}, 60*time.Second, 100*time.Millisecond, "the cost of a message is not known")
	time.Sleep(2 * time.Second) // until the rate is in force on all replicas
}

// A watcher collects the rates of acme. They are written each second.
type watcher struct {
	mu      sync.Mutex
	records []record
}

type record struct {
	quota.Rates
	at time.Time
}

func (w *deployment) watch() *watcher {
	of := &watcher{}
	ctx, cancel := context.WithCancel(w.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			ids := []quota.ID{quota.ID(acme.String())}
			r, _, err := dispatch.Rates(ctx, w.permits, w.cluster, ids)
			assert.NotErrorIs(w.t, err, dispatch.ErrInvalidRates)
			if err == nil && r.Time > 0 {
				of.see(r)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	w.t.Cleanup(func() { cancel(); watching.Wait() })
	return of
}

func (of *watcher) see(r quota.Rates) {
	of.mu.Lock()
	defer of.mu.Unlock()
	// A leader that has only put its name into the head has written no rates yet.
	if n := len(of.records); n == 0 || of.records[n-1].Time != r.Time {
		of.records = append(of.records, record{r, time.Now()})
	}
}

func (of *watcher) all() []record {
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.Clone(of.records)
}

// check requires that terms and times of the records never decrease.
func (of *watcher) check(t *testing.T) {
	all := of.all()
	require.NotEmpty(t, all)
	for i, r := range all[1:] {
		before := all[i]
		assert.GreaterOrEqual(t, r.Term, before.Term, "term of %s after %s", r.Keeper, before.Keeper)
		assert.Greater(t, r.Time, before.Time, "time of %s after %s", r.Keeper, before.Keeper)
	}
	t.Logf("%d records, of terms %d to %d", len(all), all[0].Term, all[len(all)-1].Term)
}

// by returns the first record of a ratekeeper.
func (of *watcher) by(name string) (r record, ok bool) {
	all := of.all()
	if i := slices.IndexFunc(all, func(r record) bool { return r.Keeper == name }); i >= 0 {
		return all[i], true
	}
	return record{}, false
}

// takeover is the longest time until another ratekeeper leads: etcd's lease of five seconds, two
// seconds, and three more for a busy machine.
const takeover = 10 * time.Second

// pair starts two ratekeepers, of which the first leads, and two replicas.
func (w *deployment) pair() (first, second *keeper, replicas fleet.Fleet, records *watcher) {
	w.t.Helper()
	replicas = w.replicas(100)
	records = w.watch()
	first = w.startKeeper("first")
	require.Eventually(w.t, func() bool {
		_, ok := records.by("first")
		return ok
	}, 20*time.Second, 50*time.Millisecond, "no ratekeeper leads")
	second = w.startKeeper("second")
	w.settled()
	return first, second, replicas, records
}

// takenOver waits until the second ratekeeper leads. It compares its first record with the last
// record of the first ratekeeper.
func (w *deployment) takenOver(records *watcher, since time.Time) {
	t := w.t
	t.Helper()
	require.Eventually(t, func() bool {
		_, ok := records.by("second")
		return ok
	}, 30*time.Second, 10*time.Millisecond, "no takeover")
	next, _ := records.by("second")
	all := records.all()
	before := all[slices.IndexFunc(all, func(r record) bool { return r.Keeper == "second" })-1]
	id := quota.ID(acme.String())
	was, is := before.Rates.Rates[id], next.Rates.Rates[id]
	t.Logf("took over after %v, %v after the last record; rate %.1f/s of %.0f bytes, then %.1f/s of %.0f bytes",
		next.at.Sub(since).Round(time.Millisecond), next.at.Sub(before.at).Round(time.Millisecond),
		was.Rate, was.Average, is.Rate, is.Average)
	assert.LessOrEqual(t, next.at.Sub(since), takeover)
	assert.Equal(t, "first", before.Keeper)
	assert.Greater(t, next.Term, before.Term)
	assert.InEpsilon(t, was.Average, is.Average, 0.05, "it continues from the stored average")
	assert.InEpsilon(t, was.Rate, is.Rate, 0.05, "it continues from the stored rate")
}

// TestRatekeeperKilled: when the leader is killed, another takes over and the rates stay.
func TestRatekeeperKilled(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	first, _, replicas, records := w.pair()
	first.signal(syscall.SIGKILL)
	killed := time.Now()
	w.takenOver(records, killed)
	time.Sleep(3 * time.Second)
	records.check(t)
	d := time.Since(killed)
	n := float64(fleet.Between(replicas.Messages(""), killed, killed.Add(d))) / d.Seconds()
	t.Logf("%.1f messages a second meanwhile", n)
	assert.LessOrEqual(t, n, 110.0)
	assert.GreaterOrEqual(t, n, 60.0, "replicas continue without a leader, on a busy machine")
}

// TestRatekeeperSuspended: the leader is suspended for eight seconds. When it continues, another
// leads, and it writes no rates.
func TestRatekeeperSuspended(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	first, second, _, records := w.pair()
	first.signal(syscall.SIGSTOP)
	stopped := time.Now()
	w.takenOver(records, stopped)
	time.Sleep(time.Until(stopped.Add(8 * time.Second)))
	first.signal(syscall.SIGCONT)
	time.Sleep(5 * time.Second)
	records.check(t)
	all := records.all()
	assert.Equal(t, "second", all[len(all)-1].Keeper)
	assert.Contains(t, first.logged(), "ratekeeper no longer leads")
	assert.NotContains(t, second.logged(), "ratekeeper no longer leads")

	// The suspended ratekeeper is a candidate again, and leads after the other is killed.
	second.signal(syscall.SIGKILL)
	killed := time.Now()
	require.Eventually(t, func() bool {
		all := records.all()
		return all[len(all)-1].Keeper == "first"
	}, 2*takeover, 10*time.Millisecond)
	all = records.all()
	t.Logf("led again after %v", all[len(all)-1].at.Sub(killed).Round(time.Millisecond))
	assert.LessOrEqual(t, all[len(all)-1].at.Sub(killed), takeover)
	records.check(t)
}

// TestQuotaSetIsInForce: two seconds after `quota set`, replicas run at the new rate, be it higher
// or lower than before.
func TestQuotaSetIsInForce(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	replicas := w.replicas(200)
	w.startKeeper("keeper")
	w.settled()
	before := 200.0
	for _, rate := range []int{50, 150, 0, 100} {
		set := func(rate int) {
			w.admin("quota", "set", acme.String(), fmt.Sprint("total=", rate*pages*quota.Page))
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
			assert.LessOrEqual(loose, float64(n), float64(rate)*1.03*(d.Seconds()+0.25),
				"rate x (d + 0.25 s), and 3 % for costs and requests counted at different times")
			assert.GreaterOrEqual(loose, float64(n), float64(rate)*0.9*d.Seconds())
		})
		before = float64(rate)
	}
}
