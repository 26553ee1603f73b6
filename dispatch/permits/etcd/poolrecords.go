package etcdpermits

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Update compares and swaps the value under key; ttl is rounded up to seconds.
func (s *Store) Update(
	ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte,
) error {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.writable(ctx)
	if err != nil {
		return err
	}
	always := func(old []byte, now float64) ([]byte, time.Duration, bool) {
		return f(old, now), ttl, true
	}
	return s.swap(ctx, client, key, always)
}

// A change returns what is to replace a value, nil for no value, for how long, and whether it is to
// be replaced.
type change func(old []byte, now float64) (text []byte, ttl time.Duration, replace bool)

// swap replaces the value under key by what f returns for it.
func (s *Store) swap(ctx context.Context, client *clientv3.Client, key string, f change) error {
	key = permits.EtcdKey(s.prefix, key)
	var granted clientv3.LeaseID // to an attempt that has lost
	var grantedFor time.Duration // 0 = none yet
	got, err := client.Get(ctx, key)
	if err != nil {
		return wrap("read "+key, err)
	}
	found := got.Kvs
	for attempt := 0; ; attempt++ {
		var old []byte
		var revision int64
		var lease clientv3.LeaseID
		if len(found) > 0 {
			kv := found[0]
			old, revision, lease = kv.Value, kv.ModRevision, clientv3.LeaseID(kv.Lease)
		}
		text, ttl, replace := f(old, s.clock.now(time.Now()))
		if !replace {
			return nil
		}
		op := clientv3.OpDelete(key)
		if text != nil {
			if !renew(ctx, client, lease, ttl) {
				if ttl > grantedFor {
					if granted, err = grant(ctx, client, ttl); err != nil {
						return err
					}
					grantedFor = ttl
				}
				lease = granted
			}
			op = clientv3.OpPut(key, string(text), clientv3.WithLease(lease))
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
		done, err := client.Txn(ctx).If(unchanged).Then(op).Else(clientv3.OpGet(key)).Commit()
		if err == nil && done.Succeeded {
			return nil
		}
		if err == nil {
			var all [][]*mvccpb.KeyValue
			if all, err = gets(done, 1); err == nil {
				found = all[0]
				err = permits.WaitAfterConflict(ctx, attempt)
			}
		}
		if err != nil {
			return wrap("update "+key, err)
		}
	}
}

// Value returns the value that Update keeps under key.
func (s *Store) Value(ctx context.Context, key string) ([]byte, float64, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.onTime(ctx)
	if err != nil {
		return nil, 0, err
	}
	got, err := client.Get(ctx, permits.EtcdKey(s.prefix, key))
	if err != nil {
		return nil, 0, wrap("read "+key, err)
	}
	now := s.clock.now(time.Now())
	if len(got.Kvs) == 0 {
		return nil, now, nil
	}
	return got.Kvs[0].Value, now, nil
}

// renew renews a lease, and reports whether it is good for ttl: it may have ended, or be for less,
// since a lease is renewed for as long as it was granted for.
func renew(
	ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID, ttl time.Duration,
) bool {
	if lease == 0 {
		return false
	}
	renewed, err := client.KeepAliveOnce(ctx, lease)
	return err == nil && renewed.TTL >= seconds(ttl)
}

func grant(
	ctx context.Context, client *clientv3.Client, ttl time.Duration,
) (clientv3.LeaseID, error) {
	granted, err := client.Grant(ctx, seconds(ttl))
	if err != nil {
		return 0, wrap("grant a lease", err)
	}
	return granted.ID, nil
}

// seconds rounds d up: leases are granted for whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
