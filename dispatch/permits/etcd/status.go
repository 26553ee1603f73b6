package etcdpermits

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Publish keeps a replica's status record for ttl, rounded up to seconds.
func (s *Store) Publish(
	ctx context.Context, cluster, replica string, status []byte, ttl time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	key := permits.EtcdStatus(s.prefix, cluster, replica)
	lease, _ := s.leases.Get(key)
	if !renew(ctx, client, lease, ttl) {
		if lease, err = grant(ctx, client, ttl); err != nil {
			return err
		}
	}
	s.leases.Add(key, lease)
	if _, err = client.Put(ctx, key, string(status), clientv3.WithLease(lease)); err != nil {
		return fmt.Errorf("etcd permit store: publish the status: %w", err)
	}
	return nil
}

// Replicas counts the replicas whose status record has not expired.
func (s *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	all := permits.EtcdStatus(s.prefix, cluster, "")
	response, err := client.Get(ctx, all, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("etcd permit store: count the replicas: %w", err)
	}
	return int(response.Count), nil
}

// Published returns the status records that have not expired.
func (s *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	all := permits.EtcdStatus(s.prefix, cluster, "")
	response, err := client.Get(ctx, all, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("etcd permit store: read the status records: %w", err)
	}
	var alive [][]byte
	for _, kv := range response.Kvs {
		alive = append(alive, kv.Value)
	}
	return alive, nil
}
