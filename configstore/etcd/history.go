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
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// The history is under PREFIX/history/:
//
//	head                      a head as JSON, of the last recorded change
//	changes/SERIAL-MS-BYTES   the record of a change as JSON, compressed from packedFrom bytes
//
// SERIAL has twelve digits and counts records, MS is when the change was made, and BYTES is the
// size of all records up to this one. Each Apply writes both in its transaction. A record with a
// lease belongs to no change yet.
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

	// Ends are when temporary entries end, Unix milliseconds: the latest mostEnds of those after it.
	Ends []int64 `json:"ends,omitempty"`

	Bytes int64 `json:"bytes"` // of all records so far, those that have been deleted too

	made int64 // etcd's revision of that change; 0 = there is no history
}

// plausible reports whether Apply may have written a head: a serial fits into its digits, and no
// sum overflows.
func (h head) plausible() bool {
	const most = 1 << 53
	return 0 < h.Serial && h.Serial < 1e11 && 0 <= h.Seen && h.Seen < most && 0 <= h.Count &&
		0 <= h.Bytes && h.Bytes < most && slices.IsSorted(h.Ends)
}

const (
	mostEnds = 100

	// clockSlack is how far clocks may differ. A temporary entry that ends within that time may be
	// gone by the clock of etcd.
	clockSlack = time.Minute
)

// see notes that the history explains the entries that the store has at a revision of etcd's.
func (h *head) see(revision int64, entries []policy.Entry) {
	h.Seen, h.Count, h.Ends = revision, permanent(entries), endsOf(entries)
	h.Ends = h.Ends[max(0, len(h.Ends)-mostEnds):]
}

// endsOf returns when temporary entries end, sorted.
func endsOf(entries []policy.Entry) (all []int64) {
	for _, e := range entries {
		if e.Temporary {
			all = append(all, e.Expires.UnixMilli())
		}
	}
	slices.Sort(all)
	return all
}

// pageSize is how many records are read at once.
const pageSize = 100

// packedFrom is the size from which on records are compressed.
const packedFrom = 4 << 10

// maxBytes is the most bytes of all records. Each change reads the keys of the oldest few, since it
// has one to delete as a rule; up to maxForgotten if there are more.
const (
	maxBytes     = 64 << 20
	oldestFew    = 4
	maxForgotten = 1000
)

// A record of more than aheadFrom bytes is put before its change, with a lease of aheadTime, so
// that the transaction of the change has as much room as without a record. It detaches the lease.
const (
	aheadFrom = 32 << 10
	aheadTime = time.Minute
)

// The ends of the history are what Apply has to know of it.
type ends struct {
	head
	headErr error    // why the head cannot be read
	oldest  []string // the keys of the oldest few records
}

// endGets are the reads of the ends of a history.
func (s *Store) endGets() []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(s.history + headPart),
		clientv3.OpGet(s.history+changesPart, oldest(oldestFew)...),
	}
}

// oldest are the options of a read of the keys of the n oldest records.
func oldest(n int64) []clientv3.OpOption {
	return []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(n)}
}

// forgotten returns the keys of the records that a change deletes with which the head becomes next.
func (s *Store) forgotten(
	ctx context.Context, client *clientv3.Client, few []string, next head, now time.Time,
) ([]string, error) {
	kept := func(key string) bool {
		return key >= s.recordKey(next.Serial) || !next.forgets(s.nameOf(key), now)
	}
	if len(few) == oldestFew && !slices.ContainsFunc(few, kept) {
		resp, err := client.Get(ctx, s.history+changesPart, oldest(maxForgotten)...)
		if err != nil {
			return nil, err
		}
		few = few[:0:0]
		for _, kv := range resp.Kvs {
			few = append(few, string(kv.Key))
		}
	}
	if n := slices.IndexFunc(few, kept); n >= 0 {
		few = few[:n]
	}
	return few, nil
}

// parseEnds reads the answers of endGets.
func (s *Store) parseEnds(head, oldest []*mvccpb.KeyValue) (e ends) {
	more := false // than a first one, which may have been put ahead of its change
	for _, kv := range oldest {
		e.oldest = append(e.oldest, string(kv.Key))
		more = more || !strings.HasPrefix(string(kv.Key), s.recordKey(1)+"-")
	}
	if len(head) > 0 {
		kv := head[0]
		if err := json.Unmarshal(kv.Value, &e.head); err != nil || !e.plausible() {
			e.headErr = fmt.Errorf("%s%s is damaged: to begin a new history, delete %s/",
				s.history, headPart, s.history)
		}
		e.made = kv.ModRevision
	} else if more {
		e.headErr = fmt.Errorf("%s%s is missing: to begin a new history, delete %s/",
			s.history, headPart, s.history)
	}
	return e
}

// explains reports whether the history explains all of what is stored at now, as far as can be told
// without reading it.
func (e ends) explains(snap configstore.Snapshot, now time.Time) bool {
	after := func(all []int64) int {
		n, _ := slices.BinarySearch(all, now.Add(clockSlack).UnixMilli())
		return len(all) - n
	}
	if permanent(snap.Entries) != e.Count || after(endsOf(snap.Entries)) < after(e.Ends) {
		return false
	}
	return !slices.ContainsFunc(snap.Entries, func(entry policy.Entry) bool {
		return entry.Revision > e.Seen*steps && entry.Revision != e.made*steps
	})
}

// permanent is how many entries do not end by themselves.
func permanent(entries []policy.Entry) (n int) {
	for _, e := range entries {
		if !e.Temporary {
			n++
		}
	}
	return n
}

// searchTime bounds the search for changes past the tools: with large records, it may take long.
var searchTime = time.Second // a variable for tests

// found returns what the history does not explain; a record without changes if there is nothing.
// The former value of an entry is unknown if the search has not reached its record in time.
func (s *Store) found(
	ctx context.Context, client *clientv3.Client, snap configstore.Snapshot, e ends, now time.Time,
) (configstore.Record, error) {
	if e.explains(snap, now) {
		return configstore.Record{}, nil
	}
	inTime := func(yield func(configstore.Record, error) bool) {
		bound, cancel := context.WithTimeout(ctx, searchTime)
		defer cancel()
		for r, err := range s.records(bound, client, e.head, now) {
			if bound.Err() != nil && ctx.Err() == nil || !yield(r, err) {
				return
			}
		}
	}
	return snap.Found(inTime, e.Seen*steps, now)
}

// maxChanges is the most changes that one record has of those that were found.
const maxChanges = 2000

// recordFound records what was found, in transactions of its own, since it may be more than one
// change has room for. A search after it that was cut off finds the rest. It reports whether there
// was something, or another Apply came first: the ends of the history are then others.
func (s *Store) recordFound(
	ctx context.Context, client *clientv3.Client, at listed, now time.Time,
) (changed bool, err error) {
	found, err := s.found(ctx, client, at.Snapshot, at.ends, now)
	if err != nil || len(found.Changes) == 0 {
		return false, err
	}
	next := at.head
	for left := found.Changes; len(left) > 0; found.Revision++ {
		n := min(len(left), maxChanges)
		found.Changes, left = left[:n], left[n:]
		found.First = at.Serial == 0 && len(left) == 0 // not before everything is recorded
		next.Serial++
		if len(left) == 0 {
			next.see(at.revision, at.Entries)
		}
		ops, err := s.put(ctx, client, &next, found, now)
		if err != nil {
			return false, err
		}
		resp, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(s.history+headPart), "=", at.made),
				clientv3.Compare(clientv3.ModRevision(s.prefix+markerPart), "=", at.applied)).
			Then(ops...).
			Commit()
		if err != nil {
			return false, err
		}
		if !resp.Succeeded {
			return true, nil
		}
		at.made = resp.Header.Revision
	}
	return true, nil
}

// put returns the operations that put a record and the head that it is the newest of.
func (s *Store) put(
	ctx context.Context, client *clientv3.Client, next *head, r configstore.Record, now time.Time,
) ([]clientv3.Op, error) {
	value, err := marshalRecord(r)
	if err != nil {
		return nil, err
	}
	next.Bytes += int64(len(value))
	head, err := s.putHead(next)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s-%d-%d", s.recordKey(next.Serial), now.UnixMilli(), next.Bytes)
	put := clientv3.OpPut(key, value)
	if len(value) > aheadFrom {
		put = clientv3.OpPut(key, "", clientv3.WithIgnoreValue()) // and without the lease
		err = s.putAhead(ctx, client, key, value)
	}
	return []clientv3.Op{put, head}, err
}

func (s *Store) putHead(h *head) (clientv3.Op, error) {
	text, err := json.Marshal(h)
	return clientv3.OpPut(s.history+headPart, string(text)), err
}

// errAgain says that another Apply came first.
var errAgain = errors.New("another change came first")

// putAhead puts a record that belongs to no change yet.
func (s *Store) putAhead(ctx context.Context, client *clientv3.Client, key, value string) error {
	lease, err := client.Grant(ctx, int64(aheadTime.Seconds()))
	if err != nil {
		return err
	}
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(lease.ID))).
		Commit()
	if err == nil && !resp.Succeeded {
		err = errAgain // in the same millisecond
	}
	return err
}

// recordOps returns the operations that record a commit. If the history explains what is stored,
// the head says so.
func (s *Store) recordOps(
	ctx context.Context, client *clientv3.Client, at listed, explained bool, c configstore.Commit,
	now time.Time,
) ([]clientv3.Op, error) {
	r := c.Record(at.Entries, now)
	next := at.head
	if explained {
		next.see(at.revision, configstore.After(at.Entries, c.Changes, now))
	}
	if len(r.Changes) == 0 {
		if at.made == 0 {
			return nil, nil
		}
		op, err := s.putHead(&next) // entries are written again, with the values that they have
		return []clientv3.Op{op}, err
	}
	r.First = at.Serial == 0
	next.Serial++
	ops, err := s.put(ctx, client, &next, r, now)
	if err != nil {
		return nil, err
	}
	forgotten, err := s.forgotten(ctx, client, at.oldest, next, now)
	if n := len(forgotten); n > 0 {
		ops = append(ops, clientv3.OpDelete(forgotten[0], clientv3.WithRange(forgotten[n-1]+"\x00")))
	}
	return ops, err
}

// nameOf returns the last part of a record's key.
func (s *Store) nameOf(key string) string { return strings.TrimPrefix(key, s.history+changesPart) }

// forgets reports whether a record is too old to be kept, by the last part of its key. One that no
// Apply has written is.
func (h head) forgets(name string, now time.Time) bool {
	var n, ms, size int64
	_, err := fmt.Sscanf(name, "%d-%d-%d", &n, &ms, &size)
	return err != nil || n <= h.Serial-configstore.MaxHistory || size <= h.Bytes-maxBytes ||
		ms < now.Add(-configstore.MaxHistoryAge).UnixMilli()
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
		now := time.Now()
		found, err := s.found(ctx, client, at.Snapshot, at.ends, now)
		if err != nil {
			fail(err)
			return
		}
		if len(found.Changes) > 0 && !yield(found, nil) {
			return
		}
		for r, err := range s.records(ctx, client, at.head, now) {
			if !yield(r, err) {
				return
			}
		}
	}
}

// records yields the records up to that of a head, the newest first. It leaves out those that the
// next change deletes.
func (s *Store) records(
	ctx context.Context, client *clientv3.Client, h head, now time.Time,
) iter.Seq2[configstore.Record, error] {
	return func(yield func(configstore.Record, error) bool) {
		for newest := h.Serial; newest > 0; newest -= pageSize {
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
				if ctx.Err() != nil {
					yield(configstore.Record{}, s.wrap("history", context.Cause(ctx)))
					return
				}
				if kv.Lease != 0 || h.forgets(s.nameOf(string(kv.Key)), now) {
					continue // of a change that was not made, or not yet; or it is too old
				}
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
