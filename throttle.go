// Package throttle opens what most programs need: a Limiter whose policies and permits live
// where two URLs say.
//
//	lim, err := throttle.FromEnv(ctx)
//	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
//	grant, err := sub.Acquire(ctx, 100)
package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/dispatch"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/none"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// The environment that [FromEnv] and throttle-admin read.
const (
	EnvPolicies = "THROTTLE_POLICIES"
	EnvPermits  = "THROTTLE_PERMITS"
	EnvCluster  = "THROTTLE_CLUSTER"
	EnvGroup    = "THROTTLE_GROUP" // read by FromEnv only
)

// An Option changes how a Limiter is opened.
type Option func(*options)

type options struct {
	dispatch.Config
	ratekeeper bool
	uses       []func(*ratekeeper.Ratekeeper)
}

// WithCluster names the cluster, whose namespace overrides apply and whose permits are shared. Default: standalone.
func WithCluster(name string) Option { return func(o *options) { o.Cluster = name } }

// WithGroup names the group of workers that this process is in, for limits that are divided over groups. Default: none.
func WithGroup(name string) Option { return func(o *options) { o.Group = name } }

// WithReplica names this process in what it publishes. Default: host name, process id and a random part.
func WithReplica(name string) Option { return func(o *options) { o.Replica = name } }

// WithCacheFile keeps the policies last seen in a file, for a start while their store is unavailable. Default: none.
func WithCacheFile(name string) Option { return func(o *options) { o.CacheFile = name } }

// WithOpenTimeout sets how long Open waits for the policy store before it uses the cache file or, without one, fails.
// Default: 5 s, or 1 s if there is a cache file.
func WithOpenTimeout(d time.Duration) Option { return func(o *options) { o.OpenTimeout = d } }

// WithLogger has the Limiter say what goes wrong and right again. Default: silent.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.Logger = log } }

// WithRatekeeper has this process be a candidate to find the rates of throughput quotas, for all. Each use gets it before it runs, to serve its Handler
// or its metrics (metrics.NewRatekeeperCollector), or for a Logger of its own. Default: none, so that somebody else must.
func WithRatekeeper(use ...func(*ratekeeper.Ratekeeper)) Option {
	return func(o *options) { o.ratekeeper, o.uses = true, append(o.uses, use...) }
}

// WithCostSample sets the probability with which a message's cost is counted (dispatch.Backend), and scaled back. Default: 1.
func WithCostSample(probability float64) Option {
	return func(o *options) { o.CostSample = probability }
}

// Open opens a Limiter on the policies at policiesURL and the permits at permitsURL; see [OpenPolicies] and [OpenPermits] for
// what they may be. It waits for the policies as [WithOpenTimeout] says, at most until ctx ends, which bounds the opening only.
// Close the Limiter to close both.
func Open(ctx context.Context, policiesURL, permitsURL string, opts ...Option) (*dispatch.Limiter, error) {
	both, err := open(ctx, policiesURL, permitsURL)
	if err != nil {
		return nil, err
	}
	o := options{Config: dispatch.Config{Policies: configstore.Source(both.policies), Permits: both.permits, OnClose: both.close}}
	for _, opt := range opts {
		opt(&o)
	}
	if o.ratekeeper {
		keeper := both.ratekeeper()
		keeper.Cluster, keeper.Name, keeper.Logger = o.Cluster, o.Replica, o.Logger
		for _, use := range o.uses {
			use(keeper)
		}
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		var keeping sync.WaitGroup
		keeping.Go(func() { _ = keeper.Run(running) }) // only a missing field is an error
		o.OnClose = func() error {
			stop()
			keeping.Wait()
			return both.close()
		}
	}
	lim, err := dispatch.Open(ctx, o.Config)
	if err != nil {
		return nil, errors.Join(err, o.OnClose())
	}
	return lim, nil
}

// OpenRatekeeper opens a candidate for finding the rates of throughput quotas, for a process without a Limiter, on the URLs of [Open]. Set its other
// fields as you like, and Run it; then call the function that is returned, which closes store and permit store.
func OpenRatekeeper(ctx context.Context, policiesURL, permitsURL string) (*ratekeeper.Ratekeeper, func() error, error) {
	both, err := open(ctx, policiesURL, permitsURL)
	if err != nil {
		return nil, nil, err
	}
	return both.ratekeeper(), both.close, nil
}

// stores are the policy store and the permit store of one process.
type stores struct {
	policies configstore.Store
	permits  dispatch.PermitStore
}

// open opens both stores, or none.
func open(ctx context.Context, policiesURL, permitsURL string) (stores, error) {
	policies, policiesErr := OpenPolicies(ctx, policiesURL)
	permits, permitsErr := OpenPermits(permitsURL)
	err := errors.Join(policiesErr, permitsErr)
	if err == nil {
		return stores{policies, permits}, nil
	}
	if policiesErr == nil {
		err = errors.Join(err, policies.Close())
	}
	if permitsErr == nil {
		err = errors.Join(err, permits.Close())
	}
	return stores{}, err
}

func (s stores) close() error { return errors.Join(s.policies.Close(), s.permits.Close()) }

func (s stores) ratekeeper() *ratekeeper.Ratekeeper {
	k := &ratekeeper.Ratekeeper{Policies: configstore.Source(s.policies), Permits: s.permits}
	k.Elector, _ = s.policies.(ratekeeper.Elector) // without one, it is elected by the permit store
	return k
}

// FromEnv is Open with the URLs of THROTTLE_POLICIES and THROTTLE_PERMITS, the cluster of THROTTLE_CLUSTER and the group of
// THROTTLE_GROUP, if these are set. Neither URL has a default, since a limit that silently held in one process only would be none.
// A vertex of Numaflow's is named as there: namespace/pipeline/vertex-replica.
func FromEnv(ctx context.Context, opts ...Option) (*dispatch.Limiter, error) {
	var errs []error
	need := func(name, example string) string {
		value := os.Getenv(name)
		if value == "" {
			errs = append(errs, fmt.Errorf("throttle: %s is not set: say where it is, such as %s", name, example))
		}
		return value
	}
	store := need(EnvPolicies, "etcd://127.0.0.1:2379/throttle or file:policies.yaml")
	permits := need(EnvPermits, "redis://127.0.0.1:6379, etcd://127.0.0.1:2379, or memory: for one process alone")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cluster := os.Getenv(EnvCluster); cluster != "" {
		opts = append([]Option{WithCluster(cluster)}, opts...)
	}
	if group := os.Getenv(EnvGroup); group != "" {
		opts = append([]Option{WithGroup(group)}, opts...)
	}
	if replica := numaflowReplica(); replica != "" {
		opts = append([]Option{WithReplica(replica)}, opts...)
	}
	return Open(ctx, store, permits, opts...)
}

// numaflowReplica names the container of Numaflow's that this process is, by the environment that it sets; "" for any other.
func numaflowReplica() string {
	vertex := cmp.Or(os.Getenv("NUMAFLOW_MONO_VERTEX_NAME"), os.Getenv("NUMAFLOW_PIPELINE_NAME")+"/"+os.Getenv("NUMAFLOW_VERTEX_NAME"))
	replica := os.Getenv("NUMAFLOW_REPLICA")
	if vertex == "/" || replica == "" {
		return ""
	}
	name := os.Getenv("NUMAFLOW_NAMESPACE") + "/" + vertex + "-" + replica
	if container := os.Getenv("NUMAFLOW_UD_CONTAINER_TYPE"); container != "" {
		name += "-" + container // a pod may have several
	}
	return name
}

// OpenPolicies opens the policies at a URL:
//
//	etcd://user:password@host:port,host:port/prefix?tls=true&ca=FILE&cert=FILE&key=FILE&server-name=NAME&password-file=FILE
//	file:policies.yaml      must exist, unless ?create=true follows: then a missing file is an empty store
//	memory:                 one process alone, empty at the start
//
// The prefix is /throttle by default. Each of ca, cert, key and server-name turns TLS on. etcd is not asked before it is needed.
func OpenPolicies(ctx context.Context, policiesURL string) (configstore.Store, error) {
	scheme, rest, _ := strings.Cut(policiesURL, ":")
	switch scheme {
	case "memory":
		return configstore.NewMemory(), nil
	case "file":
		name, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
		open := file.Open
		switch {
		case query == "create=true":
			open = file.OpenOrCreate
		case query != "" && query != "create=false":
			return nil, fmt.Errorf("throttle: store URL: %s: option %q: is unknown: a file has only create=true", name, query)
		case name == "":
			return nil, errors.New("throttle: store URL: file: has no name: write file:policies.yaml")
		}
		store, err := open(name)
		if err != nil {
			return nil, fmt.Errorf("throttle: store %s: %w", policiesURL, err)
		}
		return store, nil
	case "etcd":
		a, err := parseAddress(policiesURL, "2379", tlsOptions...)
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
		store, err := etcd.Open(ctx, cfg)
		if err != nil { // store is a nil pointer, which would make an interface that is not nil
			return nil, fmt.Errorf("throttle: open the policy store: %w", err)
		}
		return store, nil
	}
	return nil, fmt.Errorf("throttle: store URL: %s: use etcd://host:port, file:policies.yaml or \"memory:\"", unknownScheme(scheme))
}

// OpenPermits opens the permits at a URL:
//
//	redis://user:password@host:port/database?password-file=FILE
//	rediss://...            the same over TLS; each of the options ca, cert, key and server-name turns it on, too
//	redis+sentinel://user:password@host:port,host:port/database?master=NAME    the hosts are Sentinels, port 26379
//	redis+cluster://user:password@host:port,host:port    Redis Cluster; tls=true for TLS
//	etcd://user:password@host:port,host:port/prefix      with the options of [OpenPolicies]
//	memory:                 one process alone
//	none:                   nothing is allocated: for limits that are split among a fixed number of replicas
//
// The connection is made when it is needed, so that a process can start while the permit store is away.
func OpenPermits(permitsURL string) (dispatch.PermitStore, error) {
	scheme, _, _ := strings.Cut(permitsURL, ":")
	var permits dispatch.PermitStore
	var err error
	switch scheme {
	case "memory":
		permits = memory.New()
	case "none":
		permits = none.Store{}
	case "redis", "rediss", "redis+sentinel", "redis+cluster":
		permits, err = openRedis(permitsURL, scheme)
	case "etcd":
		var a address
		if a, err = parseAddress(permitsURL, "2379", tlsOptions...); err != nil {
			break
		}
		cfg := clientv3.Config{
			Endpoints: a.hosts, Username: a.user, Password: a.password,
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		}
		if cfg.TLS, err = a.tls(false); err == nil {
			permits = etcdpermits.Open(cfg, a.path, 0)
		}
	default:
		err = fmt.Errorf("%s: use redis://host:port, rediss://, redis+sentinel://, redis+cluster://, etcd://host:port, \"memory:\" or \"none:\"", unknownScheme(scheme))
	}
	if err != nil {
		return nil, fmt.Errorf("throttle: permit store URL: %w", err)
	}
	return permits, nil
}

func openRedis(permitsURL, scheme string) (dispatch.PermitStore, error) {
	port, known := "6379", tlsOptions
	if scheme == "redis+sentinel" {
		port, known = "26379", append([]string{"master"}, known...)
	}
	a, err := parseAddress(permitsURL, port, known...)
	if err != nil {
		return nil, err
	}
	o := redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password,
		IsClusterMode: scheme == "redis+cluster", MasterName: a.options.Get("master"),
	}
	switch {
	case len(a.hosts) > 1 && (scheme == "redis" || scheme == "rediss"):
		return nil, errors.New("host: several, for which the scheme is redis+cluster or redis+sentinel")
	case scheme == "redis+sentinel" && o.MasterName == "":
		return nil, errors.New("option master: is missing: it is the name that the Sentinels know the server by, such as master=mymaster")
	case a.path != "" && o.IsClusterMode:
		return nil, errors.New("database: a Redis Cluster has none")
	case a.path != "":
		if o.DB, err = strconv.Atoi(a.path); err != nil || o.DB < 0 {
			return nil, fmt.Errorf("database: %q: want a number from 0", a.path)
		}
	}
	if o.TLSConfig, err = a.tls(scheme == "rediss"); err != nil {
		return nil, err
	}
	return redispermits.Open(o, 0), nil
}
