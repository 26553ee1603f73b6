package etcdpermits

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Update compares and swaps the value under key; ttl is rounded up to seconds.
func (s *Store) Update(
	ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.onTime(ctx)
	if err != nil {
		return err
	}
	always := func(old []byte, now float64) ([]byte, bool) { return f(old, now), true }
	return s.swap(ctx, client, key, ttl, always)
}

// A change returns what is to replace a value, nil for no value, and whether it is to be
// replaced.
type change func(old []byte, now float64) (text []byte, replace bool)

// swap replaces the value under key by what f returns for it.
func (s *Store) swap(
	ctx context.Context, client *clientv3.Client, key string, ttl time.Duration, f change,
) error {
	key = permits.EtcdKey(s.prefix, key)
	var granted clientv3.LeaseID // to an attempt that has lost; 0 = none yet
	for attempt := 0; ; attempt++ {
		got, err := client.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("etcd permit store: read %s: %w", key, err)
		}
		var old []byte
		var revision int64
		var lease clientv3.LeaseID
		if len(got.Kvs) > 0 {
			kv := got.Kvs[0]
			old, revision, lease = kv.Value, kv.ModRevision, clientv3.LeaseID(kv.Lease)
		}
		text, replace := f(old, s.clock.now(time.Now()))
		if !replace {
			return nil
		}
		op := clientv3.OpDelete(key)
		if text != nil {
			if !renew(ctx, client, lease, ttl) {
				if granted == 0 {
					if granted, err = grant(ctx, client, ttl); err != nil {
						return err
					}
				}
				lease = granted
			}
			op = clientv3.OpPut(key, string(text), clientv3.WithLease(lease))
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
		done, err := client.Txn(ctx).If(unchanged).Then(op).Commit()
		if err == nil && done.Succeeded {
			return nil
		}
		if err == nil {
			err = permits.WaitAfterConflict(ctx, attempt)
		}
		if err != nil {
			return fmt.Errorf("etcd permit store: update %s: %w", key, err)
		}
	}
}

// Value returns the value that Update keeps under key.
func (s *Store) Value(ctx context.Context, key string) ([]byte, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.onTime(ctx)
	if err != nil {
		return nil, 0, err
	}
	got, err := client.Get(ctx, permits.EtcdKey(s.prefix, key))
	if err != nil {
		return nil, 0, fmt.Errorf("etcd permit store: read %s: %w", key, err)
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
		return 0, fmt.Errorf("etcd permit store: grant a lease: %w", err)
	}
	return granted.ID, nil
}

// seconds rounds d up: leases are granted for whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
