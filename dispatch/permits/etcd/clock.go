package etcdpermits

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A clock is the one that the processes of a permit store share, in seconds. Each has it run on by its own monotonic clock, and
// takes over what another says if that is later: so it is as late as the latest of them says, runs as fast as time does,
// and never back. What they say goes through one key, which all of them watch: who hears somebody fall behind says how
// late it is, and so does everybody once a second, unless another has.
type clock struct {
	mu     sync.Mutex
	known  float64
	at     time.Time // of this process, when it was known
	fault  error     // why nobody can be heard; nil: somebody can
	synced chan struct{}
}

const (
	behind = 3 * time.Millisecond // what may be between two processes; a word takes about one
	still  = time.Second          // after so long somebody speaks
	answer = 250 * time.Millisecond
)

func newClock() *clock {
	return &clock{known: 1, at: time.Now(), synced: make(chan struct{})} // 1, so that 0 stays "never"
}

// now is what the clock says at t.
func (c *clock) now(t time.Time) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known + t.Sub(c.at).Seconds()
}

// failed notes why nobody can be heard.
func (c *clock) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

// why is the fault, or otherwise if there is none.
func (c *clock) why(otherwise error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return c.fault
	}
	return otherwise
}

// learn takes over what is later than what is known, and says how far it is behind that.
func (c *clock) learn(said float64, t time.Time) (late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.known + t.Sub(c.at).Seconds()
	if said > now {
		c.known, c.at = said, t
		return 0
	}
	return time.Duration((now - said) * float64(time.Second))
}

// run keeps the clock until ctx ends.
func (c *clock) run(ctx context.Context, client *clientv3.Client, key string) {
	own := "" // the last word of this process
	say := func(condition ...clientv3.Cmp) bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answer)
		defer cancel()
		own = strconv.FormatFloat(c.now(time.Now()), 'g', -1, 64)
		r, err := client.Txn(ctx).If(condition...).Then(clientv3.OpPut(key, own)).Commit()
		return err == nil && r.Succeeded
	}
	defer say() // for who comes after the last
	ready := sync.OnceFunc(func() { close(c.synced) })
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, still)
		got, err := client.Get(bounded, key)
		cancel()
		c.failed(err)
		if err != nil {
			pause(ctx, still/4)
			continue
		}
		watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
		words := client.Watch(watching, key, clientv3.WithRev(got.Header.Revision+1))
		if len(got.Kvs) == 0 {
			if say(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)) {
				ready() // the first of all
			}
		} else {
			c.hear(got.Kvs[0].Value)
			say() // who knows better answers
		}
		alone := time.AfterFunc(answer, ready)
		c.listen(ctx, words, say, func(word []byte) bool { return string(word) == own }, ready)
		alone.Stop()
		stop()
		pause(ctx, still/4)
	}
}

// listen hears what others say, and speaks in turn, until the watch ends.
func (c *clock) listen(ctx context.Context, words clientv3.WatchChan, say func(...clientv3.Cmp) bool, own func([]byte) bool, ready func()) {
	speak := time.NewTimer(jitter(still))
	defer speak.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case word, ok := <-words:
			if !ok || word.Err() != nil {
				return
			}
			for _, e := range word.Events {
				switch late := c.hear(e.Kv.Value); {
				case own(e.Kv.Value):
				case late > behind:
					speak.Reset(jitter(behind))
				default:
					speak.Reset(jitter(still))
					ready()
				}
			}
		case <-speak.C:
			say()
			speak.Reset(jitter(still))
		}
	}
}

func (c *clock) hear(text []byte) (late time.Duration) {
	said, err := strconv.ParseFloat(string(text), 64)
	if err != nil || said != said || said > 1e12 {
		return 0 // makes no sense: the next word replaces it
	}
	return c.learn(said, time.Now())
}

// jitter is d and up to as much again, lest all speak at once.
func jitter(d time.Duration) time.Duration { return d + time.Duration(rand.Int64N(int64(d))) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
