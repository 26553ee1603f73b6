package etcdpermits

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/internal/role"
)

// A clock is the one that the processes of a permit store share, in seconds. Each process has it
// run on by its own monotonic clock, and takes over what another one publishes if that is later:
// so it shows the latest time of all, runs as fast as time does, and never back. All publish
// under one key, which all watch. A process that sees another one fall behind publishes its time,
// and so does each once a second, unless another has. While etcd is almost full, only a process
// that ends publishes: nothing is allocated then, and each publication uses up space. As soon as
// there is room, a process that has started meanwhile, and is behind, gets an answer.
type clock struct {
	mu     sync.Mutex
	known  float64
	at     time.Time     // of this process, when it was known
	fault  error         // why the key cannot be read; nil: it can
	tried  chan struct{} // closed, and replaced, when fault may be another one
	synced chan struct{} // closed when the clock is the one of all
}

const (
	behind = 3 * time.Millisecond // how far two processes may differ; to publish takes about 1 ms
	quiet  = time.Second          // without another's time, after which a process publishes its own
	answer = 250 * time.Millisecond

	// maxTime is in seconds: a later published time is damage, and no process learns it. From there
	// the clock runs on for 1,500 years before its times are out of bounds for schedules.
	maxTime = 5e10

	year = 365 * 86400.0 // in seconds: a state whose last request is further ahead is damage

	maxLate = 1e9 // seconds that a process counts as behind at most: they fit into a Duration
)

func newClock() *clock {
	// A clock that starts at 1 leaves 0 for "never".
	return &clock{known: 1, at: time.Now(), tried: make(chan struct{}), synced: make(chan struct{})}
}

// now is what the clock shows at t.
func (c *clock) now(t time.Time) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known + t.Sub(c.at).Seconds()
}

// failed notes why the key cannot be read; nil: it can.
func (c *clock) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
	close(c.tried)
	c.tried = make(chan struct{})
}

// await returns when the clock is the one of all. Its error is why that cannot be: at once if the
// user may not read the key, and else when ctx ends.
func (c *clock) await(ctx context.Context) error {
	for {
		select {
		case <-c.synced: // as soon as it is known, without the lock
			return nil
		default:
		}
		c.mu.Lock()
		fault, tried := c.fault, c.tried
		c.mu.Unlock()
		if role.DeniedByEtcd(fault) {
			return fault
		}
		select {
		case <-c.synced:
		case <-tried:
		case <-ctx.Done():
			return cmp.Or(fault, ctx.Err())
		}
	}
}

// learn takes over a time that is later than what is known at t, and returns how far it is behind
// that.
func (c *clock) learn(published float64, t time.Time) (late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.known + t.Sub(c.at).Seconds()
	if !(published <= maxTime) { // damaged, or no number
		return 0
	}
	if published > now {
		c.known, c.at = published, t
		return 0
	}
	return time.Duration(min(now-published, maxLate) * float64(time.Second))
}

// learnState takes over the time of the last request to a state, unless the state is lost: its
// clock must not become that of all limits.
func (c *clock) learnState(last float64, t time.Time) {
	if last <= c.now(t)+year {
		c.learn(last, t)
	}
}

// run keeps the clock until ctx ends. full returns why nothing may be written; nil if it may.
func (c *clock) run(
	ctx context.Context, client *clientv3.Client, key string, full func() error,
) {
	own := ""       // what this process published last
	reader := false // the user may only read the key
	publish := func(condition ...clientv3.Cmp) bool {
		if reader || full() != nil && ctx.Err() == nil {
			return false
		}
		bound := quiet
		if ctx.Err() != nil { // Close waits
			bound = answer
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
		defer cancel()
		own = strconv.FormatFloat(c.now(time.Now()), 'g', -1, 64)
		r, err := client.Txn(ctx).If(condition...).Then(clientv3.OpPut(key, own)).Commit()
		reader = role.DeniedByEtcd(err)
		return err == nil && r.Succeeded
	}
	defer publish() // for the process that comes after the last one has ended
	ready := sync.OnceFunc(func() { close(c.synced) })
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, quiet)
		got, err := client.Get(bounded, key)
		cancel()
		c.failed(err)
		if err != nil {
			pause(ctx, quiet/4)
			continue
		}
		watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
		changes := client.Watch(watching, key, clientv3.WithRev(got.Header.GetRevision()+1))
		if len(got.Kvs) == 0 {
			if publish(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)) {
				ready() // the first process of all
			}
		} else {
			c.take(got.Kvs[0].Value)
			publish() // a process whose time is later answers
		}
		alone := time.AfterFunc(answer, ready)
		isOwn := func(text []byte) bool { return string(text) == own }
		c.follow(ctx, changes, publish, isOwn, ready)
		alone.Stop()
		stop()
		pause(ctx, quiet/4)
	}
}

// follow takes over what others publish, and publishes in turn, until the watch ends.
func (c *clock) follow(
	ctx context.Context, changes clientv3.WatchChan,
	publish func(...clientv3.Cmp) bool, own func([]byte) bool, ready func(),
) {
	due := time.NewTimer(jitter(quiet))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case change, ok := <-changes:
			if !ok || change.Err() != nil {
				return
			}
			for _, e := range change.Events {
				switch late := c.take(e.Kv.Value); {
				case own(e.Kv.Value):
				case late > behind:
					due.Reset(jitter(behind))
				default:
					due.Reset(jitter(quiet))
					ready()
				}
			}
		case <-due.C:
			publish()
			due.Reset(jitter(quiet))
		}
	}
}

// take takes over a published time, and returns how far it is behind. One that is damaged counts
// as the present time: the next one replaces it.
func (c *clock) take(text []byte) (late time.Duration) {
	published, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0
	}
	return c.learn(published, time.Now())
}

// jitter is d and up to as much again, so that not all processes publish at once.
func jitter(d time.Duration) time.Duration { return d + time.Duration(rand.Int64N(int64(d))) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
