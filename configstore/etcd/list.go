package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// steps is how many revisions of the store there are for each of etcd's.
const steps = 1000

// List implements configstore.Store.
func (s *Store) List(ctx context.Context) (configstore.Snapshot, error) {
	snap, applied, err := s.list(ctx)
	if err == nil && s.create && snap.Marker == (configstore.Marker{}) && len(snap.Entries) == 0 {
		if _, err = s.Adopt(ctx, configstore.Adoption{}); err == nil {
			snap, applied, err = s.list(ctx)
		}
	}
	snap.Applied = applied * steps
	return snap, err
}

// list also returns etcd's revision of the last Apply.
func (s *Store) list(ctx context.Context) (snap configstore.Snapshot, applied int64, err error) {
	client, err := s.connect(ctx)
	if err != nil {
		return configstore.Snapshot{}, 0, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	gets := []clientv3.Op{clientv3.OpGet(s.prefix + markerPart)}
	for _, part := range parts() {
		gets = append(gets, clientv3.OpGet(s.prefix+part, clientv3.WithPrefix()))
	}
	resp, err := client.Txn(ctx).Then(gets...).Commit() // one transaction: one revision
	if err != nil {
		return configstore.Snapshot{}, 0, s.wrap("list", err)
	}
	var stored []policy.Entry
	for _, r := range resp.Responses[1:] {
		for _, kv := range r.GetResponseRange().Kvs {
			stored = append(stored, s.entry(string(kv.Key), kv.Value, kv.ModRevision))
		}
	}
	set, _ := policy.NewSet(stored) // ties and invalid patterns are among its entries
	live := policy.Snapshot{Set: set, Revision: resp.Header.Revision * steps}.At(time.Now())
	snap = configstore.Snapshot{
		Entries:  live.Set.Entries(),
		Revision: min(live.Revision, (resp.Header.Revision+1)*steps-1),
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		snap.Marker, applied = parseMarker(kvs[0].Value), kvs[0].ModRevision
	}
	return snap, applied, nil
}
