// Package etcd keeps policies and quotas in etcd.
//
// Under a prefix, /throttle by default, there are
//
//	PREFIX/SECTION/SCOPE                  a permanent entry, as policy.Marshal writes it
//	PREFIX/temporary/SECTION/SCOPE/FIELD  a temporary one, {"expires":TIME,"settings":{...}}
//	PREFIX/revision                       rewritten by each Apply, to show deletions too
//
// where SECTION is policies, quotas or quotaSettings, and SCOPE is escaped as a path segment of a
// URL. A temporary entry has a lease.
//
// A lease may outlive its entry, by as long as the entry lived: etcd restarts it when its leader
// changes. So a temporary entry is over when it expires, and the lease only cleans up. A revision
// of the store is etcd's own times 1000, plus the number of ends that etcd has not noticed yet:
// what is in force after an end has a higher revision than before, and a lower one than after the
// next change.
package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/probe"
	"github.com/dispatchthrottle/throttle/policy"
)

// DefaultPrefix is the default prefix of the keys.
const DefaultPrefix = "/throttle"

// Config says how to reach etcd.
type Config struct {
	Endpoints   []string // host:port
	Prefix      string   // default DefaultPrefix
	Username    string
	Password    string
	TLS         *tls.Config   // nil: no TLS
	DialTimeout time.Duration // default 2 s
}

// A Store keeps policies and quotas in etcd. Any number of goroutines may use it.
type Store struct {
	prefix string
	config *clientv3.Config // nil: the caller of New opens and closes the client

	mu     sync.Mutex // guards the fields below
	client *clientv3.Client
	ctx    context.Context // ends with Close
	end    context.CancelCauseFunc
}

var _ configstore.Store = (*Store)(nil)

// New returns a store on a client, which the caller closes. An empty prefix is DefaultPrefix.
func New(client *clientv3.Client, prefix string) *Store {
	s := &Store{prefix: "/" + strings.Trim(prefix, "/"), client: client}
	if s.prefix == "/" {
		s.prefix = DefaultPrefix
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

// Open returns a store that connects when it is first used, so that it opens while etcd is
// unavailable.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("configstore/etcd: no endpoints: want host:port of an etcd")
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("configstore/etcd: open: %w", context.Cause(ctx))
	}
	s := New(nil, cfg.Prefix)
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 2 * time.Second
	}
	s.config = &clientv3.Config{
		Endpoints: cfg.Endpoints, Username: cfg.Username, Password: cfg.Password, TLS: cfg.TLS,
		DialTimeout: cfg.DialTimeout,
		// A connection that was cut silently is found by keep-alives.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
	}
	return s, nil
}

// connect returns the client. With a password it waits for etcd, at most until ctx ends, one
// caller at a time.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, configstore.ErrClosed
	}
	if s.client == nil {
		cfg := *s.config
		life, cancel := context.WithCancel(s.ctx) // outlives ctx once the client is connected
		stop := context.AfterFunc(ctx, cancel)
		cfg.Context = life
		client, err := clientv3.New(cfg)
		if !stop() { // ctx has ended
			if err == nil {
				_ = client.Close() // its own context has ended, too
			}
			err = context.Cause(ctx)
		}
		if err != nil {
			cancel()
			return nil, s.wrap("connect", err)
		}
		s.client = client
	}
	return s.client, nil
}

// Close implements configstore.Store.
func (s *Store) Close() error {
	s.end(configstore.ErrClosed) // first, so that a connect that hangs releases the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config == nil || s.client == nil {
		return nil
	}
	client := s.client
	s.client = nil
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("configstore/etcd: close: %w", err)
	}
	return nil
}

// bind returns a context that ends with ctx or with the store.
func (s *Store) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(configstore.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// wrap adds what failed; it returns ErrClosed if the store was closed. If etcd did not answer, it
// adds why, as far as a new connection tells, and the error is a timeout.
func (s *Store) wrap(doing string, err error) error {
	if s.ctx.Err() != nil {
		return configstore.ErrClosed
	}
	wrapped := fmt.Errorf("configstore/etcd: %s: %w", doing, err)
	unanswered := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Unavailable
	if s.config == nil || !unanswered {
		return wrapped
	}
	if why := probe.Why(s.ctx, s.config.Endpoints, s.config.TLS); why != nil {
		return timeoutError{fmt.Errorf("%w: %w", wrapped, why)}
	}
	return timeoutError{fmt.Errorf("%w: %s", wrapped, strings.Join(s.config.Endpoints, ", "))}
}

// A timeoutError says that etcd did not answer, in whatever form the client reported that.
type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }

// Timeout implements the method of net.Error.
func (e timeoutError) Timeout() bool { return true }

const (
	temporaryPart = "/temporary"
	markerPart    = "/revision"
)

// parts are where entries are, after the prefix.
func parts() (all []string) {
	for _, section := range policy.Sections() {
		all = append(all, "/"+section.String()+"/")
	}
	return append(all, temporaryPart+"/")
}

// steps is how many revisions of the store there are for each of etcd's.
const steps = 1000

// List implements configstore.Store.
func (s *Store) List(ctx context.Context) (configstore.Snapshot, error) {
	snap, applied, err := s.list(ctx)
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
		Identity: fmt.Sprintf("etcd:%x%s", resp.Header.ClusterId, s.prefix),
		Revision: min(live.Revision, (resp.Header.Revision+1)*steps-1),
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		applied = kvs[0].ModRevision
	}
	return snap, applied, nil
}

type temporaryJSON struct {
	Expires  time.Time       `json:"expires"`
	Settings json.RawMessage `json:"settings"`
}

// entry reads what is stored at a revision of etcd's; if it cannot be read, Err says why.
func (s *Store) entry(key string, value []byte, revision int64) policy.Entry {
	k, err := s.parseKey(key)
	e := policy.Entry{
		Scope: k.Scope, Settings: k.Section.Zero(), Temporary: k.Field != "", Field: k.Field,
		Revision: revision * steps,
	}
	if err == nil && e.Temporary {
		var t temporaryJSON
		if err = json.Unmarshal(value, &t); err == nil {
			e.Expires, value = t.Expires, t.Settings
		}
	}
	var settings policy.Settings
	if err == nil {
		settings, err = policy.Unmarshal(k.Section, value)
	}
	if err == nil {
		err = settings.Validate(e.Scope)
	}
	if err == nil && e.Temporary && !slices.Equal(policy.Fields(settings), []string{e.Field}) {
		err = &policy.FieldError{
			Field: e.Field, Value: string(value),
			Reason: "not the only field of the temporary entry",
		}
	}
	if err != nil {
		e.Err = fmt.Errorf("configstore/etcd: %s: %w", key, err)
	} else {
		e.Settings = settings
	}
	return e
}

func (s *Store) key(k configstore.Key) string {
	permanent := "/" + k.Section.String() + "/" + url.PathEscape(k.Scope.String())
	switch {
	case k.Scope.Kind == policy.UnreadableKind:
		return s.prefix + "/" + k.Scope.Pattern
	case k.Field != "":
		return s.prefix + temporaryPart + permanent + "/" + k.Field
	}
	return s.prefix + permanent
}

// parseKey is the inverse of key. A key that key would not write gets an unreadable scope, with
// which it can still be deleted.
func (s *Store) parseKey(key string) (configstore.Key, error) {
	path := strings.TrimPrefix(key, s.prefix+"/")
	section, rest, _ := strings.Cut(path, "/")
	var k configstore.Key
	temporary := "/"+section == temporaryPart
	if temporary {
		section, rest, _ = strings.Cut(rest, "/")
		rest, k.Field, _ = strings.Cut(rest, "/")
	}
	var known bool
	k.Section, known = policy.ParseSection(section)
	text, err := url.PathUnescape(rest)
	if err == nil {
		k.Scope, err = policy.ParseScope(text)
	}
	if err == nil && (!known || s.key(k) != key || temporary && !isField(k)) {
		err = errors.New("not a key that this version writes")
	}
	if err != nil {
		unreadable := policy.Scope{Kind: policy.UnreadableKind, Pattern: path}
		return configstore.Key{Scope: unreadable}, err
	}
	return k, nil
}

func isField(k configstore.Key) bool {
	return slices.ContainsFunc(k.Section.Fields(), func(f policy.Field) bool {
		return f.Name == k.Field
	})
}

// Apply implements configstore.Store.
func (s *Store) Apply(
	ctx context.Context, changes []configstore.Change, ifRevision int64,
) (int64, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	for {
		// The marker must still be where it was, so that the changes were checked against what they
		// change.
		snap, applied, err := s.list(ctx)
		if err != nil {
			return 0, err
		}
		if ifRevision != 0 && applied*steps > ifRevision {
			return 0, &configstore.ConflictError{Have: applied * steps, Want: ifRevision}
		}
		if err := configstore.Check(snap.Entries, changes); err != nil {
			return 0, err
		}
		ops, leases, err := s.ops(ctx, client, changes)
		if err == nil {
			marker := s.prefix + markerPart
			var resp *clientv3.TxnResponse
			resp, err = client.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(marker), "=", applied)).
				Then(append(nest(ops), clientv3.OpPut(marker, ""))...).
				Commit()
			if err == nil && resp.Succeeded {
				return resp.Header.Revision * steps, nil
			}
		}
		for _, id := range leases {
			_, _ = client.Revoke(ctx, id) // if that fails, it expires with nothing attached
		}
		if err != nil {
			return 0, s.wrap("apply", err)
		}
	}
}

// ops returns the operations of the changes, and the leases that were granted for them.
func (s *Store) ops(
	ctx context.Context, client *clientv3.Client, changes []configstore.Change,
) (ops []clientv3.Op, leases []clientv3.LeaseID, err error) {
	now := time.Now()
	byTTL := make(map[int64]clientv3.LeaseID)
	for _, c := range changes {
		if c.Deletes() {
			ops = append(ops, clientv3.OpDelete(s.key(c.Key)))
			continue
		}
		value, err := policy.Marshal(c.Settings)
		if err != nil {
			return nil, leases, err
		}
		if c.Field == "" {
			ops = append(ops, clientv3.OpPut(s.key(c.Key), string(value)))
			continue
		}
		seconds := int64(math.Ceil(c.TTL.Seconds())) // the unit of a lease
		id, ok := byTTL[seconds]
		if !ok {
			lease, err := client.Grant(ctx, seconds)
			if err != nil {
				return nil, leases, err
			}
			id = lease.ID
			byTTL[seconds] = id
			leases = append(leases, id)
		}
		// The entry expires before its lease.
		value, err = json.Marshal(temporaryJSON{Expires: c.Entry(now, 0).Expires, Settings: value})
		if err != nil {
			return nil, leases, err
		}
		ops = append(ops, clientv3.OpPut(s.key(c.Key), string(value), clientv3.WithLease(id)))
	}
	return ops, leases, nil
}

// nest puts operations into nested transactions: etcd allows 128 operations along each branch of
// the tree, and three levels of 40 hold 64,000.
func nest(ops []clientv3.Op) []clientv3.Op {
	const width = 40
	for len(ops) > width {
		var outer []clientv3.Op
		for chunk := range slices.Chunk(ops, width) {
			outer = append(outer, clientv3.OpTxn(nil, chunk, nil))
		}
		ops = outer
	}
	return ops
}

// checkEvery is how often a silent watch is checked, and how long a check may take: a client that
// has lost etcd keeps its watch without an error, and one that is reconnected to an empty etcd
// waits for a revision that is far away.
const checkEvery = 2 * time.Second

// Watch implements configstore.Store.
func (s *Store) Watch(ctx context.Context, after int64) iter.Seq2[configstore.Batch, error] {
	return func(yield func(configstore.Batch, error) bool) {
		client, err := s.connect(ctx)
		if err != nil {
			yield(configstore.Batch{}, err)
			return
		}
		user := ctx
		ctx, cancel := s.bind(ctx)
		defer cancel()
		err = s.watch(ctx, client, after/steps, func(b configstore.Batch) bool {
			return yield(b, nil)
		})
		if err != nil && user.Err() == nil {
			yield(configstore.Batch{}, err)
		}
	}
}

// watch returns why the watch after a revision of etcd's ended; nil if yield returned false.
func (s *Store) watch(
	ctx context.Context, client *clientv3.Client, after int64, yield func(configstore.Batch) bool,
) error {
	var cluster uint64
	check := func() error {
		ctx, cancel := context.WithTimeout(ctx, checkEvery)
		defer cancel()
		resp, err := client.Get(ctx, s.prefix+markerPart)
		switch {
		case err != nil:
			return s.wrap("watch", err)
		case cluster == 0:
			cluster = resp.Header.ClusterId
		case resp.Header.ClusterId != cluster:
			return configstore.ErrCompacted
		}
		if resp.Header.Revision < after {
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
			b, ok := s.batch(resp.Events)
			if ok && !yield(b) {
				return nil
			}
			after = max(after, b.Revision/steps)
		}
	}
}

// batch returns what events say about entries; ok is false if they say nothing.
func (s *Store) batch(events []*clientv3.Event) (b configstore.Batch, ok bool) {
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
		case !ours || last[key] != i:
		case e.Type == clientv3.EventTypeDelete:
			k, _ := s.parseKey(key) // an unreadable one is a key too
			b.Deletes = append(b.Deletes, k)
		default:
			b.Puts = append(b.Puts, s.entry(key, e.Kv.Value, e.Kv.ModRevision))
		}
	}
	return b, b.Revision != 0
}
