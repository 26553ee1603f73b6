package etcdpermits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
}

// stored is a schedule in etcd, as JSON.
type stored struct {
	Version int                     `json:"version"`
	State   schedule.State          `json:"state"`
	Subs    map[string]schedule.Sub `json:"subscriptions"`
	Lease   clientv3.LeaseID        `json:"lease"`
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
// it is tried again on what that one has stored.
func (s *Store) allocate(
	ctx context.Context, client *clientv3.Client, key string, requests []*permits.Request,
) error {
	m := s.limit(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	key = permits.EtcdKey(s.prefix, key)
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
		s.clock.learn(m.stored.State.Last, started)
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
		if err != nil {
			m.loaded = false // the transaction may have been made
			return err
		}
		if response.Succeeded {
			m.stored, m.revision = next, response.Header.Revision
			delay(requests, time.Since(started))
			return nil
		}
		if err := m.load(response.Responses[0].GetResponseRange().Kvs); err != nil {
			return err
		}
		if err := permits.WaitAfterConflict(ctx, attempt); err != nil {
			return err
		}
	}
}

// apply answers the requests, and returns the schedule to store. It changes nothing in s.
func (s *stored) apply(requests []*permits.Request, now float64) stored {
	next := stored{Version: schedule.Version, State: s.State, Subs: s.present(), Lease: s.Lease}
	for _, q := range requests {
		r := q.Allocate.Request
		r.Low, r.High = 0, 0 // this clock does not step
		sub := next.Subs[r.Subscription]
		next.State, sub, q.Allocate.Reply = schedule.Allocate(next.State, sub, r, now)
		next.Subs[r.Subscription] = sub
	}
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

// delay changes answers to what they are when the transaction has taken that long.
func delay(requests []*permits.Request, taken time.Duration) {
	past := taken.Seconds()
	for _, q := range requests {
		r := &q.Allocate.Reply
		if q.Err = nil; q.Allocate.Strict && r.N > 0 && past-r.Start > tooLate.Seconds() {
			q.Err = fmt.Errorf("etcd permit store: the answer came %.3f s after its strict slot",
				past-r.Start)
			continue
		}
		r.Now += past
		if r.Start > 0 {
			r.Start = max(0, r.Start-past)
		}
	}
}

// load takes over what etcd has; a damaged schedule is as good as none.
func (m *limit) load(kvs []*mvccpb.KeyValue) error {
	m.loaded, m.revision, m.stored = true, 0, stored{}
	if len(kvs) == 0 {
		return nil
	}
	m.revision = kvs[0].ModRevision
	s, err := parse(kvs[0].Value)
	if err != nil && !errors.Is(err, errDamaged) {
		m.loaded = false
		return err
	}
	m.stored = s
	return nil
}

var errDamaged = errors.New("state is damaged: the next allocation replaces it")

func parse(text []byte) (s stored, err error) {
	if json.Unmarshal(text, &s) != nil || s.Version < 1 {
		return stored{}, errDamaged
	}
	if s.Version > schedule.Version {
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
