package etcd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// The history is under PREFIX/history/:
//
//	head                    {"serial":N,"seen":REVISION,"count":N}, of the last recorded change
//	changes/SERIAL-MS       the record of a change as JSON, compressed from packedFrom bytes
//
// SERIAL has twelve digits and counts records, and MS is when the change was made. Each Apply
// writes both in its transaction.
const (
	historyPart = "/history" // after the prefix of all keys
	headPart    = "/head"
	changesPart = "/changes/"
)

// A head says up to where the history explains what is stored.
type head struct {
	Serial int64 `json:"serial"` // of the newest record
	Seen   int64 `json:"seen"`   // etcd's revision at which that change found the entries
	Count  int   `json:"count"`  // permanent entries after it

	made int64 // etcd's revision of that change; 0 = there is no history
}

// pageSize is how many records are read at once.
const pageSize = 200

// packedFrom is the size from which on records are compressed.
const packedFrom = 4 << 10

// maxForgotten is the most old records that one change deletes.
const maxForgotten = 8

// The ends of the history are what Apply has to know of it.
type ends struct {
	head
	headErr error    // why the head cannot be read
	oldest  []string // the keys of the oldest records
}

// endGets are the reads of the ends of a history.
func (s *Store) endGets() []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(s.history + headPart),
		clientv3.OpGet(s.history+changesPart, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithLimit(maxForgotten)),
	}
}

// parseEnds reads the answers of endGets.
func (s *Store) parseEnds(head, oldest []*mvccpb.KeyValue) (e ends) {
	if len(head) > 0 {
		kv := head[0]
		if err := json.Unmarshal(kv.Value, &e.head); err != nil || e.Serial < 1 {
			e.headErr = fmt.Errorf("%s%s is damaged: to begin a new history, delete %s/",
				s.history, headPart, s.history)
		}
		e.made = kv.ModRevision
	} else if len(oldest) > 0 {
		e.headErr = fmt.Errorf("%s%s is missing: to begin a new history, delete %s/",
			s.history, headPart, s.history)
	}
	for _, kv := range oldest {
		e.oldest = append(e.oldest, string(kv.Key))
	}
	return e
}

// explains reports whether the history explains all of what is stored, as far as can be told
// without reading it.
func (e ends) explains(snap configstore.Snapshot) bool {
	if policy.CountPermanent(snap.Entries) != e.Count {
		return false
	}
	return !slices.ContainsFunc(snap.Entries, func(entry policy.Entry) bool {
		return entry.Revision > e.Seen*steps && entry.Revision != e.made*steps
	})
}

// found returns what the history does not explain; a record without changes if there is nothing.
func (s *Store) found(
	ctx context.Context, client *clientv3.Client, snap configstore.Snapshot, e ends, now time.Time,
) (configstore.Record, error) {
	if e.explains(snap) {
		return configstore.Record{}, nil
	}
	return snap.Found(s.records(ctx, client, e.Serial), e.Seen*steps, now)
}

// recordOps returns the operations that record a commit, after what was found.
func (s *Store) recordOps(
	ctx context.Context, client *clientv3.Client, at listed, c configstore.Commit, count int, now time.Time,
) ([]clientv3.Op, error) {
	if at.headErr != nil {
		return nil, at.headErr
	}
	found, err := s.found(ctx, client, at.Snapshot, at.ends, now)
	if err != nil {
		return nil, err
	}
	var ops []clientv3.Op
	next := head{Serial: at.Serial, Seen: at.revision, Count: count}
	for _, r := range []configstore.Record{found, c.Record(at.Entries, now)} {
		if len(r.Changes) == 0 {
			continue
		}
		next.Serial++
		r.First = next.Serial == 1
		value, err := marshalRecord(r)
		if err != nil {
			return nil, err
		}
		ops = append(ops, clientv3.OpPut(s.recordKey(next.Serial)+"-"+strconv.FormatInt(now.UnixMilli(), 10), value))
	}
	if next.Serial == 0 {
		return nil, nil // nothing is stored, and nothing changes
	}
	text, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	ops = append(ops, clientv3.OpPut(s.history+headPart, string(text)))
	for _, key := range at.oldest {
		if s.forgets(key, next.Serial, now) {
			ops = append(ops, clientv3.OpDelete(key))
		}
	}
	return ops, nil
}

// forgets reports whether a record is too old to be kept. A key that no Apply has written is.
func (s *Store) forgets(key string, newest int64, now time.Time) bool {
	serial, ms, _ := strings.Cut(strings.TrimPrefix(key, s.history+changesPart), "-")
	n, err1 := strconv.ParseInt(serial, 10, 64)
	at, err2 := strconv.ParseInt(ms, 10, 64)
	return err1 != nil || err2 != nil || n <= newest-configstore.MaxHistory ||
		at < now.Add(-configstore.MaxHistoryAge).UnixMilli()
}

func (s *Store) recordKey(serial int64) string {
	return fmt.Sprintf("%s%s%012d", s.history, changesPart, serial)
}

// History implements configstore.Store.
func (s *Store) History(ctx context.Context) iter.Seq2[configstore.Record, error] {
	return func(yield func(configstore.Record, error) bool) {
		fail := func(err error) { yield(configstore.Record{}, err) }
		client, err := s.connect(ctx)
		if err != nil {
			fail(err)
			return
		}
		ctx, cancel := s.bind(ctx)
		defer cancel()
		at, err := s.list(ctx, true)
		if err == nil {
			err = at.headErr
		}
		if err != nil {
			fail(err)
			return
		}
		found, err := s.found(ctx, client, at.Snapshot, at.ends, time.Now())
		if err != nil {
			fail(err)
			return
		}
		if len(found.Changes) > 0 && !yield(found, nil) {
			return
		}
		for r, err := range s.records(ctx, client, at.Serial) {
			if !yield(r, err) {
				return
			}
		}
	}
}

// records yields the records up to a serial, the newest first.
func (s *Store) records(
	ctx context.Context, client *clientv3.Client, newest int64,
) iter.Seq2[configstore.Record, error] {
	return func(yield func(configstore.Record, error) bool) {
		for ; newest > 0; newest -= pageSize {
			from, to := s.recordKey(max(1, newest-pageSize+1)), s.recordKey(newest+1)
			resp, err := client.Get(ctx, from, clientv3.WithRange(to))
			if err != nil {
				yield(configstore.Record{}, s.wrap("history", err))
				return
			}
			if len(resp.Kvs) == 0 {
				return // older ones have been deleted
			}
			for _, kv := range slices.Backward(resp.Kvs) {
				r, err := unmarshalRecord(kv.Value)
				r.Err = err
				if !r.Found { // which has a revision of its own
					r.Revision = kv.ModRevision * steps
				}
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

func marshalRecord(r configstore.Record) (string, error) {
	text, err := configstore.MarshalRecord(r)
	if err != nil || len(text) < packedFrom {
		return string(text), err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err = w.Write(text)
	err = errors.Join(err, w.Close())
	return b.String(), err
}

// maxUnpacked is the most bytes that a compressed record may have as JSON.
const maxUnpacked = 64 << 20

func unmarshalRecord(value []byte) (configstore.Record, error) {
	if bytes.HasPrefix(value, []byte{0x1f, 0x8b}) { // gzip's
		r, err := gzip.NewReader(bytes.NewReader(value))
		if err == nil {
			value, err = io.ReadAll(io.LimitReader(r, maxUnpacked))
		}
		if err != nil {
			return configstore.Record{}, fmt.Errorf("configstore/etcd: a record of the history: %w", err)
		}
	}
	return configstore.UnmarshalRecord(value)
}
