// Package etcd keeps policies and quotas in etcd.
//
// Under PREFIX/config/, where PREFIX is /throttle by default, there are
//
//	SECTION/SCOPE                  a permanent entry, as policy.Marshal writes it
//	temporary/SECTION/SCOPE/FIELD  a temporary one, {"expires":TIME,"settings":{...}}
//	marker                         {"id":ID,"epoch":MS,"serial":N,"count":N}, rewritten by each Apply
//
// where SECTION is policies, quotas, quotaSettings or historySettings, and SCOPE is escaped as a
// path segment of a URL. A temporary entry has a lease. The history of changes is under
// PREFIX/history/, elections are under PREFIX/elections/, and the permit store has keys of its own
// under PREFIX: those who watch policies see none of them.
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
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
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
	root    string                      // the prefix of all keys
	prefix  string                      // of the entries and the marker
	history string                      // of the keys of the history
	config  *clientv3.Config            // nil: the caller of New opens and closes the client
	tls     func() (*tls.Config, error) // nil: no TLS
	create  bool                        // as in Config

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
	s.prefix, s.history = s.root+configPart, s.root+historyPart
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

// Keys are where a store keeps its keys, each with a / at its end.
type Keys struct {
	Config    string // policies, quotas, their settings, and the marker
	Elections string // of ratekeepers, by cluster
	History   string // of changes
}

// Keys returns where the store keeps its keys.
func (s *Store) Keys() Keys {
	return Keys{s.prefix + "/", s.root + electionPart, s.history + "/"}
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
