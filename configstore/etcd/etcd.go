// Package etcd keeps policies and quotas in etcd.
//
// Under PREFIX/config/, where PREFIX is /throttle by default, there are
//
//	SECTION/SCOPE                  a permanent entry, as policy.Marshal writes it
//	temporary/SECTION/SCOPE/FIELD  a temporary one, {"expires":TIME,"settings":{...}}
//	marker                         {"id":ID,"epoch":MS,"serial":N,"count":N}, rewritten by each Apply
//
// where SECTION is policies, quotas or quotaSettings, and SCOPE is escaped as a path segment of a
// URL. A temporary entry has a lease. Elections are under PREFIX/elections/, and the permit store
// has keys of its own under PREFIX: those who watch policies see none of them.
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
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/internal/probe"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/policy"
)

// DefaultPrefix is the default prefix of the keys.
const DefaultPrefix = "/throttle"

// Config says how to reach etcd.
type Config struct {
	Endpoints   []string // host:port
	Prefix      string   // default DefaultPrefix
	Username    string
	Password    func() (string, error)      // asked at each login; nil: no password
	TLS         func() (*tls.Config, error) // asked at each connection; nil: no TLS
	DialTimeout time.Duration               // default 2 s
	Create      bool                        // List adopts a store that is empty and has no marker
}

// A Store keeps policies and quotas in etcd. Any number of goroutines may use it.
type Store struct {
	root   string                      // the prefix of all keys
	prefix string                      // of the entries and the marker
	config *clientv3.Config            // nil: the caller of New opens and closes the client
	tls    func() (*tls.Config, error) // nil: no TLS
	create bool                        // as in Config

	mu     sync.Mutex // guards the fields below
	client *clientv3.Client
	ctx    context.Context // ends with Close
	end    context.CancelCauseFunc
}

var _ configstore.Store = (*Store)(nil)

// New returns a store on a client, which the caller closes. An empty prefix is DefaultPrefix.
func New(client *clientv3.Client, prefix string) *Store {
	s := &Store{root: "/" + strings.Trim(prefix, "/"), client: client}
	if s.root == "/" {
		s.root = DefaultPrefix
	}
	s.prefix = s.root + configPart
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

// Keys are where a store keeps its keys, each with a / at its end.
type Keys struct {
	Config    string // policies, quotas, their settings, and the marker
	Elections string // of ratekeepers, by cluster
	History   string // reserved for the history of changes
}

// Keys returns where the store keeps its keys.
func (s *Store) Keys() Keys {
	return Keys{s.prefix + "/", s.root + electionPart, s.root + "/history/"}
}

// Endpoints returns the host:port of each etcd that the store was opened with.
func (s *Store) Endpoints() []string { return slices.Clone(s.config.Endpoints) }

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
		Endpoints: cfg.Endpoints, Username: cfg.Username, DialTimeout: cfg.DialTimeout,
		// A connection that was cut silently is found by keep-alives.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
	}
	etcdclient.Ask(s.config, cfg.Password, cfg.TLS)
	s.tls, s.create = cfg.TLS, cfg.Create
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

// roles are the roles of those who do what only they may.
var roles = map[string]role.Role{
	"apply": role.Admin, "adopt": role.Admin, "wait for the election": role.Ratekeeper,
}

// wrap adds what failed and, if the user lacks a right, how it is granted; it returns ErrClosed if
// the store was closed. If etcd did not answer, it adds why, as far as a new connection tells, and
// the error is a timeout.
func (s *Store) wrap(doing string, err error) error {
	if s.ctx.Err() != nil {
		return configstore.ErrClosed
	}
	if role.DeniedByEtcd(err) {
		err = role.Denied(err, role.Etcd, roles[doing])
	}
	wrapped := fmt.Errorf("configstore/etcd: %s: %w", doing, err)
	unanswered := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Unavailable
	if s.config == nil || !unanswered {
		return wrapped
	}
	if why := s.why(); why != nil {
		return timeoutError{fmt.Errorf("%w: %w", wrapped, why)}
	}
	return timeoutError{fmt.Errorf("%w: %s", wrapped, strings.Join(s.config.Endpoints, ", "))}
}

// why returns why etcd does not answer, as far as a new connection tells.
func (s *Store) why() error {
	var cfg *tls.Config
	if s.tls != nil {
		var err error
		if cfg, err = s.tls(); err != nil {
			return err
		}
	}
	return probe.Why(s.ctx, s.config.Endpoints, cfg)
}

// A timeoutError says that etcd did not answer, in whatever form the client reported that.
type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }

// Timeout implements the method of net.Error.
func (e timeoutError) Timeout() bool { return true }

const (
	configPart    = "/config" // after the prefix of all keys
	temporaryPart = "/temporary"
	markerPart    = "/marker"
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

// parseMarker reads a marker. One that cannot be read is none.
func parseMarker(value []byte) (m configstore.Marker) {
	if json.Unmarshal(value, &m) != nil || m.ID == "" || m.Epoch <= 0 || m.Serial < 0 || m.Count < 0 {
		return configstore.Marker{}
	}
	return m
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
		e.Err = fmt.Errorf("configstore/etcd: %s: %w", printable.Line(key), err)
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
		marker, err := snap.Marker.Applied(snap.Entries, changes, time.Now())
		if err != nil {
			return 0, err
		}
		ops, leases, err := s.ops(ctx, client, changes)
		if err == nil {
			var revision int64
			if revision, err = s.mark(ctx, client, marker, applied, nest(ops)...); revision > 0 {
				return revision * steps, nil
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

// mark writes the marker, and makes the operations with it, if the last Apply was at that revision
// of etcd's. It returns the new revision; 0 if there was another Apply.
func (s *Store) mark(
	ctx context.Context, client *clientv3.Client, m configstore.Marker, applied int64,
	ops ...clientv3.Op,
) (revision int64, err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	key := s.prefix + markerPart
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", applied)).
		Then(append(ops, clientv3.OpPut(key, string(text)))...).
		Commit()
	if err != nil || !resp.Succeeded {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// Adopt implements configstore.Store.
func (s *Store) Adopt(
	ctx context.Context, a configstore.Adoption,
) (configstore.Marker, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return configstore.Marker{}, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	for {
		snap, applied, err := s.list(ctx)
		if err != nil {
			return configstore.Marker{}, err
		}
		m, err := snap.Marker.Adopted(a, snap.Entries, time.Now())
		if err != nil {
			return configstore.Marker{}, err
		}
		switch revision, err := s.mark(ctx, client, m, applied); {
		case err != nil:
			return configstore.Marker{}, s.wrap("adopt", err)
		case revision > 0:
			return m, nil
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
