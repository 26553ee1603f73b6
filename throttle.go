// Package throttle opens what most programs need: a Limiter whose policies and permits live
// where two URLs say.
//
//	lim, err := throttle.FromEnv(ctx)
//	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
//	grant, err := sub.Acquire(ctx, 100)
package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/ledger/memory"
	redisledger "github.com/dispatchthrottle/throttle/dispatch/ledger/redis"
)

// The environment that [FromEnv] and throttle-admin read.
const (
	EnvStore   = "THROTTLE_STORE"
	EnvLedger  = "THROTTLE_LEDGER"
	EnvCluster = "THROTTLE_CLUSTER"
)

// An Option changes how a Limiter is opened.
type Option func(*dispatch.Config)

// WithCluster names the cluster, whose namespace overrides apply and whose permits are shared. Default: standalone.
func WithCluster(name string) Option { return func(c *dispatch.Config) { c.Cluster = name } }

// WithReplica names this process in what it publishes. Default: host name, process id and a random part.
func WithReplica(name string) Option { return func(c *dispatch.Config) { c.Replica = name } }

// WithCacheFile keeps the policies last seen in a file, for a start while their store is away. Default: none.
func WithCacheFile(name string) Option { return func(c *dispatch.Config) { c.CacheFile = name } }

// WithLogger has the Limiter say what goes wrong and right again. Default: silent.
func WithLogger(log *slog.Logger) Option { return func(c *dispatch.Config) { c.Logger = log } }

// Open opens a Limiter on the policies at storeURL and the permits at ledgerURL; see [OpenStore] and [OpenLedger] for
// what they may be. ctx bounds the opening only. Close the Limiter to close both.
func Open(ctx context.Context, storeURL, ledgerURL string, opts ...Option) (*dispatch.Limiter, error) {
	store, storeErr := OpenStore(ctx, storeURL)
	ledger, ledgerErr := OpenLedger(ledgerURL)
	cfg := dispatch.Config{Ledger: ledger}
	cfg.OnClose = func() error {
		var errs []error
		if store != nil {
			errs = append(errs, store.Close())
		}
		if ledger != nil {
			errs = append(errs, ledger.Close())
		}
		return errors.Join(errs...)
	}
	if err := errors.Join(storeErr, ledgerErr); err != nil {
		return nil, errors.Join(err, cfg.OnClose())
	}
	cfg.Policies = configstore.Source(store)
	for _, opt := range opts {
		opt(&cfg)
	}
	lim, err := dispatch.Open(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, cfg.OnClose())
	}
	return lim, nil
}

// FromEnv is Open with the URLs of THROTTLE_STORE and THROTTLE_LEDGER, and the cluster of THROTTLE_CLUSTER, if that
// is set. Neither URL has a default, since a limit that silently held in one process only would be none.
func FromEnv(ctx context.Context, opts ...Option) (*dispatch.Limiter, error) {
	var errs []error
	need := func(name, example string) string {
		value := os.Getenv(name)
		if value == "" {
			errs = append(errs, fmt.Errorf("throttle: %s is not set: say where it is, such as %s", name, example))
		}
		return value
	}
	store := need(EnvStore, "etcd://127.0.0.1:2379/throttle or file:policies.yaml")
	ledger := need(EnvLedger, "redis://127.0.0.1:6379, or memory: for one process alone")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cluster := os.Getenv(EnvCluster); cluster != "" {
		opts = append([]Option{WithCluster(cluster)}, opts...)
	}
	return Open(ctx, store, ledger, opts...)
}

// OpenStore opens the policies at a URL:
//
//	etcd://user:password@host:port,host:port/prefix?tls=true&ca=FILE&cert=FILE&key=FILE&server-name=NAME&password-file=FILE
//	file:policies.yaml
//	memory:                 one process alone, empty at the start
//
// The prefix is /throttle by default. Each of ca, cert, key and server-name turns TLS on. etcd is not asked before it is needed.
func OpenStore(ctx context.Context, storeURL string) (configstore.Store, error) {
	scheme, rest, _ := strings.Cut(storeURL, ":")
	switch scheme {
	case "memory":
		return configstore.NewMemory(), nil
	case "file":
		store, err := file.Open(strings.TrimPrefix(rest, "//"))
		if err != nil {
			return nil, fmt.Errorf("throttle: store %s: %w", storeURL, err)
		}
		return store, nil
	case "etcd":
		a, err := parseAddress(storeURL, "2379", tlsOptions...)
		if err != nil {
			return nil, fmt.Errorf("throttle: store URL: %w", err)
		}
		cfg := etcd.Config{Endpoints: a.hosts, Username: a.user, Password: a.password}
		if a.path != "" {
			cfg.Prefix = "/" + a.path
		}
		if cfg.TLS, err = a.tls(false); err != nil {
			return nil, fmt.Errorf("throttle: store URL: %w", err)
		}
		return etcd.Open(ctx, cfg)
	}
	return nil, fmt.Errorf("throttle: store URL: %s: use etcd://host:port, file:policies.yaml or \"memory:\"", unknownScheme(scheme))
}

// OpenLedger opens the permits at a URL:
//
//	redis://user:password@host:port/database?password-file=FILE
//	rediss://...            the same over TLS; each of the options ca, cert, key and server-name turns it on, too
//	redis+cluster://user:password@host:port,host:port    Redis Cluster; tls=true for TLS
//	memory:                 one process alone
//
// The connection is made when it is needed, so that a process can start while Redis is away.
func OpenLedger(ledgerURL string) (dispatch.Ledger, error) {
	scheme, _, _ := strings.Cut(ledgerURL, ":")
	switch scheme {
	case "memory":
		return memory.New(), nil
	case "redis", "rediss", "redis+cluster":
		a, err := parseAddress(ledgerURL, "6379", tlsOptions...)
		if err != nil {
			return nil, fmt.Errorf("throttle: ledger URL: %w", err)
		}
		o := redis.UniversalOptions{Addrs: a.hosts, Username: a.user, Password: a.password, IsClusterMode: scheme == "redis+cluster"}
		switch {
		case len(a.hosts) > 1 && !o.IsClusterMode:
			err = errors.New("host: several, for which the scheme is redis+cluster")
		case a.path != "" && o.IsClusterMode:
			err = errors.New("database: a Redis Cluster has none")
		case a.path != "":
			if o.DB, err = strconv.Atoi(a.path); err != nil || o.DB < 0 {
				err = fmt.Errorf("database: %q: want a number from 0", a.path)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("throttle: ledger URL: %w", err)
		}
		if o.TLSConfig, err = a.tls(scheme == "rediss"); err != nil {
			return nil, fmt.Errorf("throttle: ledger URL: %w", err)
		}
		return redisledger.Open(o, 0), nil
	}
	return nil, fmt.Errorf("throttle: ledger URL: %s: use redis://host:port, rediss://, redis+cluster:// or \"memory:\"", unknownScheme(scheme))
}
