package redispermits

import (
	"context"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Publish keeps a replica's status record for ttl under a key of its own, and the replica's name
// in a set.
func (s *Store) Publish(
	ctx context.Context, cluster, replica string, status []byte, ttl time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	pipe := s.client.Pipeline()
	pipe.Set(ctx, permits.RedisStatus(cluster, replica), status, ttl)
	pipe.SAdd(ctx, permits.RedisReplicas(cluster), replica)
	pipe.Expire(ctx, permits.RedisReplicas(cluster), max(ttl, time.Hour))
	if _, err := pipe.Exec(ctx); err != nil {
		return s.wrap("publish the status", err)
	}
	return nil
}

// Published returns the status records that have not expired, and removes the names of the
// others.
func (s *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	names, err := s.client.SMembers(ctx, permits.RedisReplicas(cluster)).Result()
	if err != nil || len(names) == 0 {
		return nil, s.wrap("read the replicas", err)
	}
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = permits.RedisStatus(cluster, name)
	}
	values, err := s.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, s.wrap("read the status records", err)
	}
	var alive [][]byte
	var gone []any
	for i, v := range values {
		if text, ok := v.(string); ok {
			alive = append(alive, []byte(text))
		} else {
			gone = append(gone, names[i])
		}
	}
	if len(gone) > 0 {
		// If this fails, the next reader tries again.
		_ = s.client.SRem(ctx, permits.RedisReplicas(cluster), gone...).Err()
	}
	return alive, nil
}

// Replicas counts the replicas whose status record has not expired.
func (s *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	names, err := s.client.SMembers(ctx, permits.RedisReplicas(cluster)).Result()
	if err != nil || len(names) == 0 {
		return 0, s.wrap("read the replicas", err)
	}
	for i, name := range names {
		names[i] = permits.RedisStatus(cluster, name)
	}
	n, err := s.client.Exists(ctx, names...).Result()
	return int(n), s.wrap("count the replicas", err)
}
