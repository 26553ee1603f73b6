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
	at, err := s.list(ctx, false)
	if err == nil && s.create && at.Marker == (configstore.Marker{}) && len(at.Entries) == 0 {
		if err = s.begin(ctx); err == nil {
			at, err = s.list(ctx, false)
		}
	}
	return at.Snapshot, err
}

// A listed is what one transaction has read, with etcd's own revisions.
type listed struct {
	configstore.Snapshot
	revision, applied int64 // of etcd: when it was read, and of the last Apply
	ends
}

// list reads the entries and, if it is asked to, what Apply has to know of the history.
func (s *Store) list(ctx context.Context, withHistory bool) (at listed, err error) {
	client, err := s.connect(ctx)
	if err != nil {
		return listed{}, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	gets := []clientv3.Op{clientv3.OpGet(s.prefix + markerPart)}
	for _, part := range parts() {
		gets = append(gets, clientv3.OpGet(s.prefix+part, clientv3.WithPrefix()))
	}
	ofEntries := len(gets)
	if withHistory {
		gets = append(gets, s.endGets()...)
	}
	resp, err := client.Txn(ctx).Then(gets...).Commit() // one transaction: one revision
	if err != nil {
		return listed{}, s.wrap("list", err)
	}
	var stored []policy.Entry
	for _, r := range resp.Responses[1:ofEntries] {
		for _, kv := range r.GetResponseRange().Kvs {
			stored = append(stored, s.entry(string(kv.Key), kv.Value, kv.ModRevision))
		}
	}
	set, _ := policy.NewSet(stored) // ties and invalid patterns are among its entries
	live := policy.Snapshot{Set: set, Revision: resp.Header.Revision * steps}.At(time.Now())
	at.revision = resp.Header.Revision
	at.Entries, at.Revision = live.Set.Entries(), min(live.Revision, (at.revision+1)*steps-1)
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		at.Marker, at.applied = parseMarker(kvs[0].Value), kvs[0].ModRevision
		at.Applied = at.applied * steps
	}
	if withHistory {
		answers := resp.Responses[ofEntries:]
		at.ends = s.parseEnds(answers[0].GetResponseRange().Kvs, answers[1].GetResponseRange().Kvs)
	}
	return at, nil
}
