package etcdpermits

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// rowsInTxn is how many rows one transaction has: etcd allows 128 operations.
const rowsInTxn = 100

// SetRows puts a key for each row, with the lease of the value under key, in transactions of up to
// rowsInTxn rows. Each has a time-out of its own.
func (s *Store) SetRows(
	ctx context.Context, key string, head []byte, _ time.Duration, rows map[string][]byte,
) (done bool, err error) {
	headKey := permits.EtcdKey(s.prefix, key)
	got, err := s.commit(ctx, "read "+key, s.writable, nil, clientv3.OpGet(headKey))
	if err != nil {
		return false, err
	}
	heads, err := gets(got, 1)
	if err != nil {
		return false, wrap("read "+key, err)
	}
	found := heads[0]
	if len(found) == 0 || string(found[0].Value) != string(head) {
		return false, nil
	}
	lease := clientv3.WithLease(clientv3.LeaseID(found[0].Lease))
	var ops []clientv3.Op
	for name, text := range rows {
		at := permits.EtcdRow(s.prefix, key, name)
		op := clientv3.OpDelete(at)
		if len(text) > 0 {
			op = clientv3.OpPut(at, string(text), lease)
		}
		ops = append(ops, op)
	}
	unchanged := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(headKey), "=", found[0].ModRevision),
	}
	for some := range slices.Chunk(ops, rowsInTxn) {
		answer, err := s.commit(ctx, "set rows of "+key, s.writable, unchanged, some...)
		if err != nil || !answer.Succeeded {
			return false, err
		}
	}
	return true, nil
}

// Rows reads the keys of rows, in transactions of up to rowsInTxn rows. Each has a time-out of its
// own.
func (s *Store) Rows(ctx context.Context, key string, names []string) (rows [][]byte, err error) {
	for some := range slices.Chunk(names, rowsInTxn) {
		ops := make([]clientv3.Op, len(some))
		for i, name := range some {
			ops[i] = clientv3.OpGet(permits.EtcdRow(s.prefix, key, name))
		}
		answer, err := s.commit(ctx, "read rows of "+key, s.connect, nil, ops...)
		if err != nil {
			return nil, err
		}
		all, err := gets(answer, len(ops))
		if err != nil {
			return nil, wrap("read rows of "+key, err)
		}
		for _, found := range all {
			var text []byte
			if len(found) > 0 {
				text = found[0].Value
			}
			rows = append(rows, text)
		}
	}
	return rows, nil
}

// commit makes one transaction within the time-out, by the client that connect returns.
func (s *Store) commit(
	ctx context.Context, doing string, connect func(context.Context) (*clientv3.Client, error),
	conditions []clientv3.Cmp, ops ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return nil, wrap(doing, err)
	}
	return answer, nil
}

// gets returns what each of the n gets of a transaction has found.
func gets(answer *clientv3.TxnResponse, n int) ([][]*mvccpb.KeyValue, error) {
	if len(answer.Responses) != n {
		return nil, fmt.Errorf("invalid answer of %d responses: want %d", len(answer.Responses), n)
	}
	found := make([][]*mvccpb.KeyValue, n)
	for i, one := range answer.Responses {
		found[i] = one.GetResponseRange().GetKvs()
	}
	return found, nil
}

// RowNames reads the keys of all rows.
func (s *Store) RowNames(ctx context.Context, key string) (names []string, err error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	all := permits.EtcdRow(s.prefix, key, "")
	got, err := client.Get(ctx, all, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, wrap("read the names of the rows of "+key, err)
	}
	for _, kv := range got.Kvs {
		if name, err := url.PathUnescape(strings.TrimPrefix(string(kv.Key), all)); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}
