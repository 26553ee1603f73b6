package etcdpermits

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Publish keeps a replica's status record for ttl, rounded up to seconds.
func (s *Store) Publish(
	ctx context.Context, cluster, replica string, record []byte, ttl time.Duration,
) error {
	if err := permits.CheckRecord(record); err != nil {
		return err
	}
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.writable(ctx)
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
	if _, err = client.Put(ctx, key, string(record), clientv3.WithLease(lease)); err != nil {
		return wrap("publish the status", err)
	}
	return nil
}

// Replicas counts the replicas whose status record has not expired.
func (s *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	all := permits.EtcdStatus(s.prefix, cluster, "")
	response, err := client.Get(ctx, all, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, wrap("count the replicas", err)
	}
	return int(response.Count), nil
}

// Published returns the status records that have not expired, up to [permits.MaxRecords] and
// [permits.MaxRecordsBytes]. It reads them in pages, each in a call of its own. etcd does not say
// how large they are before they are read: a page that comes too late is read again in parts.
func (s *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	all := permits.EtcdStatus(s.prefix, cluster, "")
	end := clientv3.GetPrefixRangeEnd(all)
	var alive [][]byte
	limit, free := firstPage, permits.MaxRecordsBytes
	for from := all; len(alive) < permits.MaxRecords; {
		page, err := s.statusPage(ctx, from, end, limit)
		if late(err) && ctx.Err() == nil && limit > 1 {
			limit = max(1, limit/4)
			continue
		} else if err != nil {
			return nil, err
		}
		read, before := 0, from
		for _, kv := range page.Kvs {
			if size := len(kv.Value); size <= min(permits.MaxRecord, free) {
				alive, free = append(alive, kv.Value), free-size
			}
			read += len(kv.Value)
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			break
		} else if from <= before {
			return nil, wrap("read the status records", errors.New("invalid answer: the same page again"))
		}
		limit = min(max(1, len(page.Kvs)*permits.RecordsPageBytes/max(1, read)), permits.RecordsPage)
	}
	return alive, nil
}

// Publishers returns the names of the replicas whose status records have not expired, up to
// [permits.MaxRecords].
func (s *Store) Publishers(ctx context.Context, cluster string) (names []string, err error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	all := permits.EtcdStatus(s.prefix, cluster, "")
	response, err := client.Get(ctx, all, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithLimit(permits.MaxRecords))
	if err != nil {
		return nil, wrap("read the replicas", err)
	}
	for _, kv := range response.Kvs {
		name, err := url.PathUnescape(strings.TrimPrefix(string(kv.Key), all))
		if err == nil { // else no replica has written it
			names = append(names, name)
		}
	}
	return names, nil
}

// PublishedBy returns the status records of some replicas that have not expired, up to
// [permits.MaxRecordsBytes]. It reads them in pages, as Published does.
func (s *Store) PublishedBy(
	ctx context.Context, cluster string, replicas []string,
) (alive [][]byte, err error) {
	limit, free := firstPage, permits.MaxRecordsBytes
	for len(replicas) > 0 {
		page := replicas[:min(limit, len(replicas))]
		kvs, err := s.recordsOf(ctx, cluster, page)
		if late(err) && ctx.Err() == nil && limit > 1 {
			limit = max(1, limit/4)
			continue
		} else if err != nil {
			return nil, err
		}
		replicas = replicas[len(page):]
		read := 0
		for _, kv := range kvs {
			if size := len(kv.Value); size <= min(permits.MaxRecord, free) {
				alive, free = append(alive, kv.Value), free-size
			}
			read += len(kv.Value)
		}
		limit = min(max(1, len(page)*permits.RecordsPageBytes/max(1, read)), firstPage)
	}
	return alive, nil
}

// recordsOf reads the records of some replicas, up to firstPage: etcd takes 128 operations in a
// transaction.
func (s *Store) recordsOf(
	ctx context.Context, cluster string, replicas []string,
) (kvs []*mvccpb.KeyValue, err error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	var gets []clientv3.Op
	for _, name := range replicas {
		gets = append(gets, clientv3.OpGet(permits.EtcdStatus(s.prefix, cluster, name)))
	}
	response, err := client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, wrap("read the status records", err)
	}
	for _, got := range response.Responses {
		kvs = append(kvs, got.GetResponseRange().GetKvs()...)
	}
	return kvs, nil
}

// firstPage is how many records are read while their sizes are unknown.
const firstPage = 100

// late reports whether etcd has not answered a call in time.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// statusPage reads the first records from a key to another one.
func (s *Store) statusPage(
	ctx context.Context, from, to string, limit int,
) (*clientv3.GetResponse, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	page, err := client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, wrap("read the status records", err)
	}
	return page, nil
}
