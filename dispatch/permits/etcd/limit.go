package etcdpermits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// tooLate is how late the answer with a strict slot may come, after the slot's time: two permits
// may be used too close together by that.
const tooLate = 20 * time.Millisecond

// A limit is what this process knows of one limit's schedule.
type limit struct {
	mu       sync.Mutex // held while allocating
	loaded   bool
	stored   stored
	revision int64            // etcd's, of stored; 0 = there is none
	lease    clientv3.LeaseID // whose end is known
	ends     time.Time        // when it ends, at the earliest
	turn     time.Time        // when this process may write again
}

// stored is a schedule in etcd, as JSON.
type stored struct {
	Version int                     `json:"version"`
	State   schedule.State          `json:"state"`
	Subs    map[string]schedule.Sub `json:"subscriptions"`
	Lease   clientv3.LeaseID        `json:"lease"`

	damaged bool // it is empty, and replaces what could not be read
}

// limit returns what is known of the limit with that key.
func (s *Store) limit(key string) *limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.limits.Get(key)
	if !ok {
		m = &limit{}
		s.limits.Add(key, m)
	}
	return m
}

// allocate makes the allocations of one limit in one transaction. If another process was faster,
// it is tried again on what that one has stored. A process that has just written knows what is
// stored, and would be the fastest each time. After a transaction it therefore waits as long as
// that one took, so that those that lost to it come first.
func (s *Store) allocate(
	ctx context.Context, client *clientv3.Client, key string, requests []*permits.Request,
) error {
	m := s.limit(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	key = permits.EtcdKey(s.prefix, key)
	pause(ctx, time.Until(m.turn))
	for attempt := 0; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !m.loaded {
			response, err := client.Get(ctx, key)
			if err != nil {
				return err
			}
			if err := m.load(response.Kvs); err != nil {
				return err
			}
		}
		started := time.Now()
		s.clock.learnState(m.stored.State.Last, started)
		now := s.clock.now(started)
		next := m.stored.apply(requests, now)
		if err := s.extendState(ctx, client, m, &next, requests[0].Allocate.Strict, now); err !=
			nil {
			return err
		}
		text, err := json.Marshal(next)
		if err != nil {
			return err
		}
		response, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", m.revision)).
			Then(clientv3.OpPut(key, string(text), clientv3.WithLease(next.Lease))).
			Else(clientv3.OpGet(key)).Commit()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has ended meanwhile
			m.stored.Lease = 0
			continue
		}
		if err != nil { // it may have been made: then the next one fails, and loads it
			return err
		}
		if response.Succeeded {
			m.stored, m.revision = next, response.Header.GetRevision()
			taken := time.Since(started)
			m.turn = started.Add(2 * taken)
			delay(requests, taken, s.usual(taken))
			return nil
		}
		found, err := gets(response, 1)
		if err == nil {
			err = m.load(found[0])
		}
		if err != nil {
			return err
		}
		if err := permits.WaitAfterConflict(ctx, attempt); err != nil {
			return err
		}
	}
}

// apply answers the requests, and returns the schedule to store. It changes nothing in s.
func (s *stored) apply(requests []*permits.Request, now float64) stored {
	next := stored{State: s.State, Subs: s.present(), Lease: s.Lease}
	for i, q := range requests {
		r := q.Allocate.Request
		r.Low, r.High = 0, 0 // this clock does not step
		sub := next.Subs[r.Subscription]
		next.State, sub, q.Allocate.Reply = schedule.Allocate(next.State, sub, r, now)
		if q.Allocate.Reply.Lost { // with what it had of all subscriptions
			clear(next.Subs)
		}
		q.Allocate.Reply.Lost = q.Allocate.Reply.Lost || i == 0 && s.damaged
		next.Subs[r.Subscription] = sub
	}
	next.Version = next.State.Version()
	return next
}

// present copies the subscriptions that still count.
func (s *stored) present() map[string]schedule.Sub {
	subs := make(map[string]schedule.Sub, len(s.Subs)+1)
	for name, sub := range s.Subs {
		if sub.Epoch >= s.State.Epoch-1 {
			subs[name] = sub
		}
	}
	return subs
}

// delay changes answers to what they are when the transaction has taken that long, and the fastest
// ones take usual. All slots come later by usual, which changes no distance between them. Slots
// that are over for more than a round even so are wasted: to use them would exceed the limit.
func delay(requests []*permits.Request, taken, usual time.Duration) {
	past := taken.Seconds()
	for _, q := range requests {
		r := &q.Allocate.Reply
		q.Err = nil
		r.Now += past
		shift := past
		if !q.Allocate.Strict {
			shift -= usual.Seconds()
			if r.N > 0 {
				r.Lead -= past
			}
		}
		late := shift - r.Start
		switch {
		case r.N == 0:
		case q.Allocate.Strict && late > tooLate.Seconds():
			q.Err = fmt.Errorf("etcd permit store: the answer came %.3f s after its strict slot", late)
		case !q.Allocate.Strict && late > q.Allocate.Round:
			over := min(r.N, math.Ceil((late-q.Allocate.Round)/r.Gap))
			r.N -= over
			r.Start += over * r.Gap
		}
		if r.Start > 0 {
			r.Start = max(0, r.Start-shift)
		}
	}
}

// usual is how long the fastest of recent transactions take, given the time of one more.
func (s *Store) usual(taken time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken < s.fastest || s.fastest == 0 {
		s.fastest = taken
	} else {
		s.fastest += (taken - s.fastest) / 64
	}
	return min(taken, s.fastest)
}

// load takes over what etcd has; a damaged schedule is as good as none.
func (m *limit) load(kvs []*mvccpb.KeyValue) error {
	m.loaded, m.revision, m.stored = true, 0, stored{}
	if len(kvs) == 0 {
		return nil
	}
	m.revision = kvs[0].ModRevision
	s, err := parse(kvs[0])
	if err != nil && !errors.Is(err, errDamaged) {
		m.loaded = false
		return err
	}
	m.stored = s
	return nil
}

var errDamaged = errors.New("state is damaged: the next allocation replaces it")

// parse reads a schedule. All versions give it a lease: without one, a newer version is damage.
func parse(kv *mvccpb.KeyValue) (s stored, err error) {
	err = json.Unmarshal(kv.Value, &s)
	newer := s.Version > schedule.Version
	if err != nil || s.Version < 1 || s.Version > schedule.MaxVersion || newer && kv.Lease == 0 {
		return stored{damaged: true}, errDamaged
	}
	if newer {
		return stored{},
			fmt.Errorf("state of version %d: this program knows %d: upgrade this program",
				s.Version, schedule.Version)
	}
	return s, nil
}

// extendState makes a schedule live as long as it may matter: by its lease, or another one if
// that ends before.
func (s *Store) extendState(
	ctx context.Context, client *clientv3.Client, m *limit, next *stored, strict bool, now float64,
) error {
	life := time.Duration(min(next.State.Lifetime(strict, now), 1e9) * float64(time.Second))
	if next.Lease != 0 && next.Lease != m.lease { // another process has granted it
		left, err := client.TimeToLive(ctx, next.Lease)
		if err != nil {
			return err
		}
		m.lease, m.ends = next.Lease, time.Now().Add(time.Duration(left.TTL-1)*time.Second)
	}
	if next.Lease != 0 && time.Now().Add(life).Before(m.ends) {
		return nil
	}
	lease, err := client.Grant(ctx, int64(2*life/time.Second))
	if err != nil {
		return err
	}
	next.Lease, m.lease, m.ends = lease.ID, lease.ID, time.Now().Add(2*life-time.Second)
	return nil
}
