package quotas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
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
	}, throttletest.Patience, 10*time.Millisecond, "the ratekeeper does not listen")
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
	lim, err := throttle.FromEnv(ctx, throttle.WithOpenTimeout(throttletest.Patience))
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
	throttletest.Until(w.t, "the cost of a message is known", func() bool { return costIsKnown(w.rates()) })
}

func costIsKnown(r quota.Rates) bool {
	average := r.Rates[quota.ID(acme.String())].Average
	return average > 0.97*pages*quota.Page && average < 1.03*pages*quota.Page
}

// A watcher collects the rates of acme. They are written each second: first the row, then the head
// with the time, by which a record is known.
type watcher struct {
	mu      sync.Mutex
	records []record
}

type record struct {
	quota.Rates
	at time.Time
}

func (w *deployment) watch() *watcher {
	seen := &watcher{}
	ctx, cancel := context.WithCancel(w.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			ids := []quota.ID{quota.ID(acme.String())}
			r, _, err := dispatch.Rates(ctx, w.permits, w.cluster, ids)
			assert.NotErrorIs(w.t, err, dispatch.ErrInvalidRates)
			if err == nil && r.Time > 0 {
				seen.see(r)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	w.t.Cleanup(func() { cancel(); watching.Wait() })
	return seen
}

func (w *watcher) see(r quota.Rates) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A leader that has only put its name into the head has written no rates yet.
	if n := len(w.records); n == 0 || w.records[n-1].Time != r.Time {
		w.records = append(w.records, record{r, time.Now()})
	}
}

func (w *watcher) all() []record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.records)
}

// check requires that terms and times of the records never decrease.
func (w *watcher) check(t *testing.T) {
	all := w.all()
	require.NotEmpty(t, all)
	for i, r := range all[1:] {
		before := all[i]
		assert.GreaterOrEqual(t, r.Term, before.Term, "term of %s after %s", r.Keeper, before.Keeper)
		assert.Greater(t, r.Time, before.Time, "time of %s after %s", r.Keeper, before.Keeper)
	}
	t.Logf("%d records, of terms %d to %d", len(all), all[0].Term, all[len(all)-1].Term)
}

// by returns the first record of a ratekeeper.
func (w *watcher) by(name string) (r record, ok bool) {
	all := w.all()
	if i := slices.IndexFunc(all, func(r record) bool { return r.Keeper == name }); i >= 0 {
		return all[i], true
	}
	return record{}, false
}

// pair starts two ratekeepers, of which the first leads, and two replicas.
func (w *deployment) pair() (first, second *keeper, replicas fleet.Fleet, records *watcher) {
	w.t.Helper()
	replicas = w.replicas(100)
	records = w.watch()
	first = w.startKeeper("first")
	require.Eventually(w.t, func() bool {
		_, ok := records.by("first")
		return ok
	}, throttletest.Patience, 50*time.Millisecond, "no ratekeeper leads")
	second = w.startKeeper("second")
	throttletest.Until(w.t, "the cost of a message is known, and in force", func() bool {
		all := records.all()
		return costIsKnown(all[len(all)-1].Rates)
	})
	return first, second, replicas, records
}

// takenOver waits until the second ratekeeper leads, and returns when it did. It compares its first
// record with the last record of the first ratekeeper.
func (w *deployment) takenOver(records *watcher) (at time.Time) {
	t := w.t
	t.Helper()
	require.Eventually(t, func() bool {
		_, ok := records.by("second")
		return ok
	}, throttletest.Patience, 10*time.Millisecond, "no takeover")
	next, _ := records.by("second")
	all := records.all()
	before := all[slices.IndexFunc(all, func(r record) bool { return r.Keeper == "second" })-1]
	id := quota.ID(acme.String())
	was, is := before.Rates.Rates[id], next.Rates.Rates[id]
	assert.Equal(t, "first", before.Keeper)
	assert.Greater(t, next.Term, before.Term)
	assert.InEpsilon(t, was.Average, is.Average, 0.05, "it continues from the stored average")
	assert.InEpsilon(t, was.Rate, is.Rate, 0.05, "it continues from the stored rate")
	return next.at
}

// TestRatekeeperKilled: when the leader is killed, replicas continue, another takes over and the
// rates stay.
func TestRatekeeperKilled(t *testing.T) {
	t.Parallel()
	w := newDeployment(t, services.Patient(services.Redis(t)))
	first, _, replicas, records := w.pair()
	first.signal(syscall.SIGKILL)
	n := len(replicas.Messages(""))
	w.takenOver(records)
	require.Eventually(t, func() bool { return len(replicas.Messages("")) > n+200 }, throttletest.Patience, 10*time.Millisecond)
	records.check(t)
}

// TestRatekeeperSuspended: the leader is suspended until another leads. When it continues, it
// writes no rates, until the other is killed.
func TestRatekeeperSuspended(t *testing.T) {
	t.Parallel()
	w := newDeployment(t, services.Patient(services.Redis(t)))
	first, second, _, records := w.pair()
	first.signal(syscall.SIGSTOP)
	w.takenOver(records)
	first.signal(syscall.SIGCONT)
	throttletest.Until(t, "the first ratekeeper notices", func() bool {
		return strings.Contains(first.logged(), "ratekeeper no longer leads")
	})
	seen := len(records.all())
	require.Eventually(t, func() bool { return len(records.all()) >= seen+3 }, throttletest.Patience, 10*time.Millisecond)
	for _, r := range records.all()[seen:] {
		assert.Equal(t, "second", r.Keeper)
	}
	assert.NotContains(t, second.logged(), "ratekeeper no longer leads")

	second.signal(syscall.SIGKILL)
	require.Eventually(t, func() bool {
		all := records.all()
		return all[len(all)-1].Keeper == "first"
	}, throttletest.Patience, 10*time.Millisecond)
	records.check(t)
}

// setTotal sets the quota of acme to a number of messages a second.
func (w *deployment) setTotal(rate int) {
	w.t.Helper()
	w.admin("quota", "set", acme.String(), fmt.Sprint("total=", rate*pages*quota.Page))
}

// quotaRates are those of TestQuotaSet, in messages a second, after 200.
var quotaRates = []int{50, 150, 0, 100}

// inForce reports whether the published status of both replicas has a rate, in messages a second,
// within ten percent for the cost of a message. A quota of 0 falls to a little more than 0.
func (w *deployment) inForce(rate int) bool {
	w.t.Helper()
	statuses, err := w.permits.Published(w.t.Context(), w.cluster)
	if err != nil || len(statuses) != 2 {
		return false
	}
	for _, text := range statuses {
		var status dispatch.Stats
		require.NoError(w.t, json.Unmarshal(text, &status))
		if len(status.Subscriptions) != 1 || len(status.Subscriptions[0].Limits) != 1 ||
			math.Abs(status.Subscriptions[0].Limits[0].Rate-float64(rate)) > 0.1+float64(rate)/10 {
			return false
		}
	}
	return true
}

// TestQuotaSet: after `quota set`, replicas have the new rate, be it higher or lower than before,
// and run at no more than it.
func TestQuotaSet(t *testing.T) {
	t.Parallel()
	w := newDeployment(t, services.Patient(services.Redis(t)))
	replicas := w.replicas(200)
	w.startKeeper("keeper")
	w.settled()
	before := 200
	for _, rate := range quotaRates {
		w.setTotal(rate)
		throttletest.Until(t, fmt.Sprintf("%d/s is in force", rate), func() bool { return w.inForce(rate) })
		from, read := time.Now(), len(replicas.Messages(""))
		time.Sleep(time.Second) // at 0/s nothing may come
		throttletest.Until(t, fmt.Sprintf("messages at %d/s", rate), func() bool {
			return len(replicas.Messages("")) >= read+rate
		})
		var since []window.Event
		for _, m := range replicas.Messages("")[read:] {
			since = append(since, window.Event{At: m.Read.Sub(from), N: 1})
		}
		const slack = 250 * time.Millisecond
		allocated := float64(before) * slack.Seconds() // at the rate before
		assert.NoError(t, window.WithinRate(1.1*float64(rate), slack, allocated, since))
		before = rate
	}
}
