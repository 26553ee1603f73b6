package etcd

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
)

// checkEvery is how often a silent watch is checked, and how long a check may take: a client that
// has lost etcd keeps its watch without an error, and one that is reconnected to an empty etcd
// waits for a revision that is far away.
const checkEvery = 2 * time.Second

// Watch implements configstore.Store.
func (s *Store) Watch(ctx context.Context, after configstore.Snapshot) iter.Seq2[configstore.Batch, error] {
	return func(yield func(configstore.Batch, error) bool) {
		client, err := s.connect(ctx)
		if err != nil {
			yield(configstore.Batch{}, err)
			return
		}
		user := ctx
		ctx, cancel := s.bind(ctx)
		defer cancel()
		err = s.watch(ctx, client, after, func(b configstore.Batch) bool {
			return yield(b, nil)
		})
		if err != nil && user.Err() == nil {
			yield(configstore.Batch{}, err)
		}
	}
}

// watch returns why the watch after a List ended; nil if yield returned false.
func (s *Store) watch(
	ctx context.Context, client *clientv3.Client, list configstore.Snapshot,
	yield func(configstore.Batch) bool,
) error {
	after, marker := list.Revision/steps, list.Marker // of the last batch, or of the List
	var cluster uint64
	check := func() error {
		ctx, cancel := context.WithTimeout(ctx, checkEvery)
		defer cancel()
		resp, err := client.Get(ctx, s.prefix+markerPart)
		if err != nil {
			return s.wrap("watch", err)
		}
		var is configstore.Marker
		var written int64 // the revision of is
		if len(resp.Kvs) > 0 {
			is, written = parseMarker(resp.Kvs[0].Value), resp.Kvs[0].ModRevision
		}
		cluster = cmp.Or(cluster, resp.Header.ClusterId)
		switch { // another etcd, or an older one that was restored, cannot say what changed
		case resp.Header.ClusterId != cluster, resp.Header.Revision < after,
			written <= after && is != marker,
			is.Epoch == marker.Epoch && is.Serial < marker.Serial:
			return configstore.ErrCompacted
		}
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	events := client.Watch(clientv3.WithRequireLeader(ctx), s.prefix+"/", clientv3.WithPrefix(),
		clientv3.WithRev(after+1))
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := check(); err != nil {
				return err
			}
		case resp, ok := <-events:
			if !ok {
				return s.wrap("watch", errors.New("the watch has ended"))
			}
			if err := resp.Err(); err != nil {
				if errors.Is(err, rpctypes.ErrCompacted) {
					err = configstore.ErrCompacted
				}
				return s.wrap("watch", err)
			}
			b, ok := s.batch(resp.Events, &marker)
			if ok && !yield(b) {
				return nil
			}
			after = max(after, b.Revision/steps)
		}
	}
}

// batch returns what events say about entries; ok is false if they say nothing. It keeps the
// marker up to date.
func (s *Store) batch(
	events []*clientv3.Event, marker *configstore.Marker,
) (b configstore.Batch, ok bool) {
	last := make(map[string]int) // the last event of each key counts
	for i, e := range events {
		last[string(e.Kv.Key)] = i
	}
	for i, e := range events {
		key := string(e.Kv.Key)
		ours := slices.ContainsFunc(parts(), func(part string) bool {
			return strings.HasPrefix(key, s.prefix+part)
		})
		if !ours && key != s.prefix+markerPart {
			continue
		}
		b.Revision = e.Kv.ModRevision * steps
		switch {
		case last[key] != i:
		case !ours:
			*marker = parseMarker(e.Kv.Value) // none when the key is deleted
		case e.Type == clientv3.EventTypeDelete:
			k, _ := s.parseKey(key) // an unreadable one is a key too
			b.Deletes = append(b.Deletes, k)
		default:
			b.Puts = append(b.Puts, s.entry(key, e.Kv.Value, e.Kv.ModRevision))
		}
	}
	b.Marker = *marker
	return b, b.Revision != 0
}
