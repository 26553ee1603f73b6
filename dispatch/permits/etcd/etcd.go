// Package etcdpermits keeps the schedules of all processes in etcd: for small fleets, and for several data centres that
// prefer a quorum to speed. An allocation is one transaction that compares and swaps; a minority side has no quorum and allocates
// nothing.
//
// # The clock
//
// etcd has no clock to ask, and the clocks of clients differ. The processes of a prefix share one that they keep by their
// monotonic clocks, each of which runs on from the latest that anybody has said. It runs as fast as time does, agrees to
// some milliseconds, never runs back, and stands still while there is no process.
package etcdpermits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

const (
	// DefaultTimeout bounds each call of the permit store.
	DefaultTimeout = 500 * time.Millisecond

	// DefaultDialTimeout bounds an attempt to connect, which no call waits for longer than for its own time-out.
	DefaultDialTimeout = 5 * time.Second

	// DefaultPrefix is where schedules are kept unless somebody says otherwise.
	DefaultPrefix = "/throttle"

	// tooLate is how long after its slot an answer may come that strict pacing uses: by so much two calls may come too near.
	tooLate = 20 * time.Millisecond

	parallel   = 16   // transactions under way at once, for limits that fall due together
	mostLimits = 4096 // remembered; beyond that, those used least lately are read again
	mostLeases = 256  // of status records remembered; beyond that, those used least lately are granted again
)

// A Store is the etcd permit store. Any number of goroutines may use it at once.
type Store struct {
	config  clientv3.Config
	prefix  string
	timeout time.Duration
	slots   chan struct{}

	clock   *clock
	ticking sync.WaitGroup     // the clock, while there is a client
	still   context.CancelFunc // ends it
	end     context.CancelFunc // of config.Context, with Close

	mu      sync.Mutex // guards the fields below
	attempt *attempt   // the last one to connect
	closed  bool
	lines   *lru.Cache[string, *line]            // by the limits' keys
	leases  *lru.Cache[string, clientv3.LeaseID] // of status records, by their keys
}

// A line is what this process knows of one limit.
type line struct {
	mu       sync.Mutex // held by the one who allocates
	loaded   bool
	stored   stored
	revision int64            // etcd's, of stored; 0 = there is none
	lease    clientv3.LeaseID // that is known
	ends     time.Time        // when that does, at the earliest
}

// stored is a limit's state in etcd, as JSON.
type stored struct {
	Version int                     `json:"version"`
	State   schedule.State          `json:"state"`
	Subs    map[string]schedule.Sub `json:"subscriptions"`
	Lease   clientv3.LeaseID        `json:"lease"`
}

// Open returns a permit store on the etcd of config, under a prefix (default DefaultPrefix). Each call ends within timeout (0 =
// [DefaultTimeout]). The connection is made when it is needed, so that a process can start while etcd is away.
func Open(config clientv3.Config, prefix string, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if prefix = "/" + strings.Trim(prefix, "/"); prefix == "/" {
		prefix = DefaultPrefix
	}
	config.Logger = zap.NewNop()
	if config.DialTimeout == 0 {
		config.DialTimeout = DefaultDialTimeout
	}
	if config.Context == nil {
		config.Context = context.Background()
	}
	l := &Store{
		prefix: prefix, timeout: timeout, slots: make(chan struct{}, parallel),
		clock: newClock(),
	}
	l.lines, _ = lru.New[string, *line](mostLimits) // fails only for a size of 0
	l.leases, _ = lru.New[string, clientv3.LeaseID](mostLeases)
	config.Context, l.end = context.WithCancel(config.Context)
	l.config = config
	return l
}

// Timeout is how long a call takes at most.
func (l *Store) Timeout() time.Duration { return l.timeout }

// Close closes the connection; a second call does nothing.
func (l *Store) Close() error {
	l.mu.Lock()
	a := l.attempt
	l.closed, l.attempt = true, nil
	still := l.still
	l.mu.Unlock()
	if still != nil {
		still()
		l.ticking.Wait()
	}
	l.end() // of an attempt that hangs, too
	if a == nil {
		return nil
	}
	if <-a.done; a.client == nil {
		return nil
	}
	if err := a.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd permit store: close: %w", err)
	}
	return nil
}

func (l *Store) line(limit string) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.lines.Get(limit)
	if !ok {
		n = &line{}
		l.lines.Add(limit, n)
	}
	return n
}

// Do makes the allocations of each limit in one transaction and replaces each record in one, several of them at once.
func (l *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.onTime(ctx)
	if err != nil {
		for _, r := range requests {
			r.Err = err
		}
		return
	}
	var all sync.WaitGroup
	start := func(transact func()) {
		all.Go(func() {
			l.slots <- struct{}{}
			defer func() { <-l.slots }()
			transact()
		})
	}
	var limits []string
	of := map[string][]*permits.Request{}
	for _, r := range requests {
		if r.Allocate == nil {
			continue
		}
		if of[r.Key] == nil {
			limits = append(limits, r.Key)
		}
		of[r.Key] = append(of[r.Key], r)
	}
	for _, limit := range limits {
		start(func() {
			if err := l.allocate(ctx, client, limit, of[limit]); err != nil {
				for _, r := range of[limit] {
					r.Err = fmt.Errorf("etcd permit store: allocate: %w", err)
				}
			}
		})
	}
	for _, r := range permits.Records(requests) {
		start(func() {
			apply := func(old []byte, now float64) ([]byte, bool) {
				text := r.Apply(old, now)
				return text, text != nil
			}
			if err := l.swap(ctx, client, r.Key, r.TTL, apply); err != nil {
				r.Fail(err)
			}
		})
	}
	all.Wait()
}

// allocate makes the allocations of one limit. A transaction that lost to another's is tried again on what that one left.
func (l *Store) allocate(ctx context.Context, client *clientv3.Client, limit string, requests []*permits.Request) error {
	n := l.line(limit)
	n.mu.Lock()
	defer n.mu.Unlock()
	key := permits.EtcdKey(l.prefix, limit)
	for attempt := 0; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !n.loaded {
			response, err := client.Get(ctx, key)
			if err != nil {
				return err
			}
			if err := n.load(response.Kvs); err != nil {
				return err
			}
		}
		began := time.Now()
		l.clock.learn(n.stored.State.Last, began)
		now := l.clock.now(began)
		next := stored{Version: schedule.Version, State: n.stored.State, Subs: n.stored.clone(), Lease: n.stored.Lease}
		for _, q := range requests {
			r := q.Allocate.Request
			r.Low, r.High = 0, 0 // this clock does not step
			next.State, next.Subs[r.Subscription], q.Allocate.Reply = schedule.Allocate(next.State, next.Subs[r.Subscription], r, now)
		}
		if err := l.keep(ctx, client, n, &next, requests[0].Allocate.Strict, now); err != nil {
			return err
		}
		text, err := json.Marshal(next)
		if err != nil {
			return err
		}
		response, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", n.revision)).
			Then(clientv3.OpPut(key, string(text), clientv3.WithLease(next.Lease))).Else(clientv3.OpGet(key)).Commit()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has ended since
			n.stored.Lease = 0
			continue
		}
		if err != nil {
			n.loaded = false // whether it was made is not known
			return err
		}
		if response.Succeeded {
			n.stored, n.revision = next, response.Header.Revision
			past := time.Since(began).Seconds()
			for _, q := range requests { // as of the reply
				r := &q.Allocate.Reply
				if q.Err = nil; q.Allocate.Strict && r.N > 0 && past-r.Start > tooLate.Seconds() {
					q.Err = fmt.Errorf("etcd permit store: the answer came %.3f s after its strict slot", past-r.Start)
					continue
				}
				r.Now += past
				if r.Start > 0 {
					r.Start = max(0, r.Start-past)
				}
			}
			return nil
		}
		if err := n.load(response.Responses[0].GetResponseRange().Kvs); err != nil {
			return err
		}
		if err := permits.Backoff(ctx, attempt); err != nil {
			return err
		}
	}
}

// load takes over what etcd has.
func (n *line) load(kvs []*mvccpb.KeyValue) error {
	n.loaded, n.revision, n.stored = true, 0, stored{}
	if len(kvs) == 0 {
		return nil
	}
	n.revision = kvs[0].ModRevision
	s, err := parse(kvs[0].Value)
	if err != nil && !errors.Is(err, errNonsense) {
		n.loaded = false
		return err
	}
	n.stored = s
	return nil
}

var errNonsense = errors.New("state is damaged: the next allocation replaces it")

func parse(text []byte) (s stored, err error) {
	if json.Unmarshal(text, &s) != nil || s.Version < 1 {
		return stored{}, errNonsense
	}
	if s.Version > schedule.Version {
		return stored{}, fmt.Errorf("state of version %d: this program knows %d: upgrade this program", s.Version, schedule.Version)
	}
	return s, nil
}

// clone copies the subscriptions that still count.
func (s *stored) clone() map[string]schedule.Sub {
	subs := make(map[string]schedule.Sub, len(s.Subs)+1)
	for name, sub := range s.Subs {
		if sub.Epoch >= s.State.Epoch-1 {
			subs[name] = sub
		}
	}
	return subs
}

// keep sees to it that a state lives as long as it may matter: its lease is one that lasts for its lifetime still.
func (l *Store) keep(ctx context.Context, client *clientv3.Client, n *line, s *stored, strict bool, now float64) error {
	life := time.Duration(min(s.State.Lifetime(strict, now), 1e9) * float64(time.Second))
	if s.Lease != 0 && s.Lease != n.lease { // somebody else's
		left, err := client.TimeToLive(ctx, s.Lease)
		if err != nil {
			return err
		}
		n.lease, n.ends = s.Lease, time.Now().Add(time.Duration(left.TTL-1)*time.Second)
	}
	if s.Lease != 0 && time.Now().Add(life).Before(n.ends) {
		return nil
	}
	lease, err := client.Grant(ctx, int64(2*life/time.Second))
	if err != nil {
		return err
	}
	s.Lease, n.lease, n.ends = lease.ID, lease.ID, time.Now().Add(2*life-time.Second)
	return nil
}

// State returns the schedule under key.
func (l *Store) State(ctx context.Context, limit string) (schedule.State, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.onTime(ctx)
	if err != nil {
		return schedule.State{}, 0, err
	}
	response, err := client.Get(ctx, permits.EtcdKey(l.prefix, limit))
	if err != nil {
		return schedule.State{}, 0, fmt.Errorf("etcd permit store: read %s: %w", limit, err)
	}
	var s stored
	if len(response.Kvs) > 0 {
		if s, err = parse(response.Kvs[0].Value); err != nil {
			return schedule.State{}, 0, fmt.Errorf("etcd permit store: read %s: %w", limit, err)
		}
	}
	now := time.Now()
	l.clock.learn(s.State.Last, now)
	return s.State, l.clock.now(now), nil
}
