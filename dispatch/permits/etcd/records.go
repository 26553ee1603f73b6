package etcdpermits

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Update compares and swaps the value under key; ttl is rounded up to seconds.
func (l *Store) Update(ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.onTime(ctx)
	if err != nil {
		return err
	}
	return l.swap(ctx, client, key, ttl, func(old []byte, now float64) ([]byte, bool) { return f(old, now), true })
}

// swap replaces the value under key by what f returns for it; nil is no value. f may say that there is nothing to replace.
func (l *Store) swap(ctx context.Context, client *clientv3.Client, key string, ttl time.Duration, f func([]byte, float64) (text []byte, replace bool)) error {
	key = permits.EtcdKey(l.prefix, key)
	for attempt := 0; ; attempt++ {
		got, err := client.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("etcd permit store: read %s: %w", key, err)
		}
		var old []byte
		var revision int64
		var lease clientv3.LeaseID
		if len(got.Kvs) > 0 {
			old, revision, lease = got.Kvs[0].Value, got.Kvs[0].ModRevision, clientv3.LeaseID(got.Kvs[0].Lease)
		}
		text, replace := f(old, l.clock.now(time.Now()))
		if !replace {
			return nil
		}
		op := clientv3.OpDelete(key)
		if text != nil {
			if lease, err = l.extend(ctx, client, lease, ttl); err != nil {
				return err
			}
			op = clientv3.OpPut(key, string(text), clientv3.WithLease(lease))
		}
		done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(op).Commit()
		if err == nil && done.Succeeded {
			return nil
		}
		if err == nil {
			err = permits.Backoff(ctx, attempt)
		}
		if err != nil {
			return fmt.Errorf("etcd permit store: update %s: %w", key, err)
		}
	}
}

// Value returns what Update keeps under key.
func (l *Store) Value(ctx context.Context, key string) ([]byte, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.onTime(ctx)
	if err != nil {
		return nil, 0, err
	}
	got, err := client.Get(ctx, permits.EtcdKey(l.prefix, key))
	if err != nil {
		return nil, 0, fmt.Errorf("etcd permit store: read %s: %w", key, err)
	}
	now := l.clock.now(time.Now())
	if len(got.Kvs) == 0 {
		return nil, now, nil
	}
	return got.Kvs[0].Value, now, nil
}

// extend renews a lease, or grants another one if it has ended or lasts less than ttl.
func (l *Store) extend(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	if lease != 0 {
		if renewed, err := client.KeepAliveOnce(ctx, lease); err == nil && renewed.TTL >= seconds { // by the TTL that it was granted with
			return lease, nil
		}
	}
	granted, err := client.Grant(ctx, seconds)
	if err != nil {
		return 0, fmt.Errorf("etcd permit store: grant a lease: %w", err)
	}
	return granted.ID, nil
}

// Publish keeps a replica's status for ttl, rounded up to seconds.
func (l *Store) Publish(ctx context.Context, cluster, replica string, status []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.connect(ctx)
	if err != nil {
		return err
	}
	key := permits.EtcdStatus(l.prefix, cluster, replica)
	lease, _ := l.leases.Get(key)
	if lease, err = l.extend(ctx, client, lease, ttl); err != nil {
		return err
	}
	l.leases.Add(key, lease)
	if _, err = client.Put(ctx, key, string(status), clientv3.WithLease(lease)); err != nil {
		return fmt.Errorf("etcd permit store: publish the status: %w", err)
	}
	return nil
}

// Replicas counts the replicas that are alive.
func (l *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.connect(ctx)
	if err != nil {
		return 0, err
	}
	response, err := client.Get(ctx, permits.EtcdStatus(l.prefix, cluster, ""), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("etcd permit store: count the replicas: %w", err)
	}
	return int(response.Count), nil
}

// Published returns the status of each replica that is alive.
func (l *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	response, err := client.Get(ctx, permits.EtcdStatus(l.prefix, cluster, ""), clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("etcd permit store: read the status records: %w", err)
	}
	var alive [][]byte
	for _, kv := range response.Kvs {
		alive = append(alive, kv.Value)
	}
	return alive, nil
}
