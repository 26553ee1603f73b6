// Package throttle opens what most programs need: a Limiter on a policy store and a permit store,
// each given by a URL.
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
	"github.com/dispatchthrottle/throttle/policy"
)

// The environment variables that [FromEnv] and throttle-admin read.
const (
	EnvPolicies = "THROTTLE_POLICIES"
	EnvPermits  = "THROTTLE_PERMITS"
	EnvCluster  = "THROTTLE_CLUSTER"
	EnvGroup    = "THROTTLE_GROUP" // the worker group; read by FromEnv only
)

// An Option changes how a Limiter is opened.
type Option func(*options)

type options struct {
	dispatch.Config
	ratekeeper bool
	uses       []func(*ratekeeper.Ratekeeper)
}

// WithCluster sets the name of the cluster: its namespace overrides apply, and its replicas share
// permits. Default: standalone.
func WithCluster(name string) Option { return func(o *options) { o.Cluster = name } }

// WithGroup sets the worker group of this process, for limits that are divided over worker groups
// (sharing mode groups). Default: none.
func WithGroup(name string) Option { return func(o *options) { o.Group = name } }

// WithReplica sets the name of this process in what it publishes. Default: host name, process id
// and a random part.
func WithReplica(name string) Option { return func(o *options) { o.Replica = name } }

// WithCacheFile keeps the latest policies in a file, from which Open starts while the policy store
// is unavailable. Default: none.
func WithCacheFile(name string) Option { return func(o *options) { o.CacheFile = name } }

// WithOpenTimeout sets how long Open waits for the policy store before it uses the cache file or,
// without one, fails. Default: 5 s, or 1 s if there is a cache file.
func WithOpenTimeout(d time.Duration) Option { return func(o *options) { o.OpenTimeout = d } }

// WithLogger sets where the Limiter reports failures and recoveries. Default:
// slog.Default().
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.Logger = log } }

// WithRatekeeper makes this process a candidate for the ratekeeper, which computes the rates of
// throughput quotas for all replicas. Each use is called with it before it runs: to serve its
// Handler or its metrics (metrics.NewRatekeeperCollector), or to set a Logger. Default: none;
// quotas then need a candidate elsewhere.
func WithRatekeeper(use ...func(*ratekeeper.Ratekeeper)) Option {
	return func(o *options) { o.ratekeeper, o.uses = true, append(o.uses, use...) }
}

// WithCostSample sets the probability with which the cost of a message is counted (see
// [dispatch.Backend]); counts are scaled accordingly. Default: 1.
func WithCostSample(probability float64) Option {
	return func(o *options) { o.CostSample = probability }
}

// Open opens a Limiter on the policy store at policiesURL and the permit store at permitsURL; see
// [OpenPolicies] and [OpenPermits] for their forms. It waits for the policies as [WithOpenTimeout]
// says, at most until ctx ends; ctx bounds the opening only. Closing the Limiter closes both
// stores.
func Open(
	ctx context.Context, policiesURL, permitsURL string, opts ...Option,
) (*dispatch.Limiter, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	both, err := open(ctx, policiesURL, permitsURL, o.CacheFile)
	if err != nil {
		return nil, err
	}
	o.Policies, o.Permits, o.OnClose = configstore.Source(both.policies), both.permits, both.close
	if o.Logger != nil {
		for _, w := range Warnings(policiesURL, permitsURL) {
			o.Logger.Warn(w)
		}
	}
	if o.ratekeeper {
		keeper := both.ratekeeper()
		keeper.Cluster, keeper.Name, keeper.Logger = o.Cluster, o.Replica, o.Logger
		for _, use := range o.uses {
			use(keeper)
		}
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		var keeping sync.WaitGroup
		keeping.Go(func() { _ = keeper.Run(running) }) // fails only if a field is missing
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

// OpenRatekeeper returns a candidate for the ratekeeper, for a process without a Limiter, on the
// URLs of [Open]; see [Warnings]. Set its other fields as needed, and Run it; then call
// closeStores.
func OpenRatekeeper(
	ctx context.Context, policiesURL, permitsURL string,
) (k *ratekeeper.Ratekeeper, closeStores func() error, err error) {
	both, err := open(ctx, policiesURL, permitsURL, "")
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

// hasPolicies reports whether a cache file holds policies.
func hasPolicies(cacheFile string) bool {
	text, err := os.ReadFile(cacheFile)
	if err != nil {
		return false
	}
	s, err := policy.UnmarshalSnapshot(text)
	return err == nil && policy.CountPermanent(s.Set.Entries()) > 0
}

// open opens both stores, or none. It creates no file of policies if the cache file has some.
func open(ctx context.Context, policiesURL, permitsURL, cacheFile string) (stores, error) {
	policies, policiesErr := OpenPolicies(ctx, policiesURL)
	if f, ok := policies.(*file.Store); ok && policiesErr == nil {
		if hasPolicies(cacheFile) {
			f.Expect()
		} else {
			policiesErr = f.Create(ctx)
		}
	}
	permits, permitsErr := OpenPermits(permitsURL)
	err := errors.Join(policiesErr, permitsErr)
	if err == nil {
		return stores{policies, permits}, nil
	}
	if policies != nil {
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
	k.Elector, _ = s.policies.(ratekeeper.Elector) // nil: it is elected through the permit store
	return k
}

// FromEnv is [Open] with the URLs of THROTTLE_POLICIES and THROTTLE_PERMITS, the cluster of
// THROTTLE_CLUSTER and the worker group of THROTTLE_GROUP; the last two are optional. Both URLs are
// required, so that a limit never silently becomes per-process. In a Numaflow vertex the replica's
// name is namespace/pipeline/vertex-replica.
func FromEnv(ctx context.Context, opts ...Option) (*dispatch.Limiter, error) {
	var errs []error
	require := func(name, example string) string {
		value := os.Getenv(name)
		if value == "" {
			errs = append(errs,
				fmt.Errorf("throttle: %s is not set: want a URL such as %s", name, example))
		}
		return value
	}
	policies := require(EnvPolicies, "etcd://127.0.0.1:2379/throttle or file:policies.yaml")
	permits := require(EnvPermits,
		"redis://127.0.0.1:6379, etcd://127.0.0.1:2379, or memory: for a single process")
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
	return Open(ctx, policies, permits, opts...)
}

// numaflowReplica returns the name of a container that Numaflow has started, from the environment
// that Numaflow sets; "" for any other process.
func numaflowReplica() string {
	vertex := cmp.Or(os.Getenv("NUMAFLOW_MONO_VERTEX_NAME"),
		os.Getenv("NUMAFLOW_PIPELINE_NAME")+"/"+os.Getenv("NUMAFLOW_VERTEX_NAME"))
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

// OpenPolicies opens the policy store at a URL:
//
//	etcd://user:password@host:port,host:port/prefix?OPTIONS
//	file:policies.yaml      the file must exist; with ?create=true, a missing one is created, but
//	                        not in place of policies in a cache file
//	memory:                 for a single process; empty at the start
//
// The options of etcd are tls=true, ca=FILE, cert=FILE, key=FILE, server-name=NAME and
// password-file=FILE. Each of ca, cert, key and server-name turns TLS on. The files are read again
// for each login and each connection, so that what they hold may change. The default prefix is
// /throttle. The store connects to etcd when it is first used. With create=true, which needs the
// right to set policies, an empty one is adopted then; without it, a Limiter does not start on an
// empty one, which may be the wrong one.
func OpenPolicies(ctx context.Context, policiesURL string) (configstore.Store, error) {
	store, err := openPolicies(ctx, policiesURL)
	if err != nil { // store may be a nil pointer in an interface that is not nil
		return nil, fmt.Errorf("throttle: policy store URL: %w", err)
	}
	return store, nil
}

func openPolicies(ctx context.Context, policiesURL string) (configstore.Store, error) {
	scheme, rest, _ := strings.Cut(policiesURL, ":")
	switch scheme {
	case "memory":
		return configstore.NewMemory(), nil
	case "file":
		return openFile(strings.TrimPrefix(rest, "//"))
	case "etcd":
		a, err := parseAddress(policiesURL, "2379", policyOptions...)
		if err != nil {
			return nil, err
		}
		l, loginErr := a.login("", false)
		create, createErr := a.flag("create")
		if err := errors.Join(loginErr, createErr); err != nil {
			return nil, err
		}
		cfg := etcd.Config{
			Endpoints: a.hosts, Username: l.user, Password: l.password, TLS: l.tls,
			Create: create,
		}
		if a.path != "" {
			cfg.Prefix = "/" + a.path
		}
		return etcd.Open(ctx, cfg)
	}
	return nil, fmt.Errorf("%s: want etcd://host:port, file:policies.yaml or a memory: URL",
		unknownScheme(scheme))
}

func openFile(path string) (configstore.Store, error) {
	name, query, _ := strings.Cut(path, "?")
	switch {
	case name == "":
		return nil, errors.New("file: the name is missing: want file:policies.yaml")
	case query == "create=true":
		return file.OpenOrCreate(name)
	case query == "" || query == "create=false":
		return file.Open(name)
	}
	return nil, fmt.Errorf("%s: option %q: unknown: a file has only create=true", name, query)
}

// OpenPermits opens the permit store at a URL:
//
//	redis://user:password@host:port/database?password-file=FILE
//	rediss://...            the same over TLS
//	redis+sentinel://...    the hosts are Sentinels, port 26379; ?master=NAME is required;
//	                        sentinel-user=NAME and sentinel-password-file=FILE are for them
//	redis+cluster://...     the hosts are of a Redis Cluster, which has no database
//	etcd://user:password@host:port,host:port/prefix
//	memory:                 for a single process
//	none:                   no allocations: for limits split among a fixed number of replicas
//
// The options of Redis and etcd are those of etcd in [OpenPolicies]. Those of TLS with sentinel-
// before their names are for Sentinels, which otherwise have the TLS of the servers. With
// timeout=DURATION a call ends within that time (default 200ms for Redis, 500ms for etcd), or
// within four times what calls have taken, at most 2s. The store connects when it is first used, so
// that a process can start while it is unavailable.
func OpenPermits(permitsURL string) (dispatch.PermitStore, error) {
	permits, err := openPermits(permitsURL)
	if err != nil {
		return nil, fmt.Errorf("throttle: permit store URL: %w", err)
	}
	return permits, nil
}

func openPermits(permitsURL string) (dispatch.PermitStore, error) {
	scheme, _, _ := strings.Cut(permitsURL, ":")
	switch scheme {
	case "memory":
		return memory.New(), nil
	case "none":
		return none.Store{}, nil
	case "redis", "rediss", "redis+sentinel", "redis+cluster":
		return openRedis(permitsURL, scheme)
	case "etcd":
		a, err := parseAddress(permitsURL, "2379", permitOptions...)
		if err != nil {
			return nil, err
		}
		timeout, err := a.timeout()
		if err != nil {
			return nil, err
		}
		l, err := a.login("", false)
		if err != nil {
			return nil, err
		}
		cfg := clientv3.Config{
			Endpoints: a.hosts, Username: l.user,
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		}
		return etcdpermits.Open(cfg, a.path, timeout,
			etcdpermits.WithPassword(l.password), etcdpermits.WithTLS(l.tls)), nil
	}
	return nil, fmt.Errorf("%s: want redis://host:port, rediss://, redis+sentinel://, "+
		"redis+cluster://, etcd://host:port, or one of the schemes memory: and none: alone",
		unknownScheme(scheme))
}

func openRedis(permitsURL, scheme string) (dispatch.PermitStore, error) {
	port, known := storeOptions(scheme)
	a, err := parseAddress(permitsURL, port, known...)
	if err != nil {
		return nil, err
	}
	o := redis.UniversalOptions{
		Addrs: a.hosts, IsClusterMode: scheme == "redis+cluster",
		MasterName: a.options.Get("master"),
	}
	switch {
	case len(a.hosts) > 1 && (scheme == "redis" || scheme == "rediss"):
		return nil, fmt.Errorf("hosts: %d with scheme %s, which takes one: use redis+cluster "+
			"or redis+sentinel", len(a.hosts), scheme)
	case scheme == "redis+sentinel" && o.MasterName == "":
		return nil, errors.New("option master: missing: want the server's name in the " +
			"Sentinels' configuration, such as master=mymaster")
	case a.path != "" && o.IsClusterMode:
		return nil, fmt.Errorf("database: %q: a Redis Cluster has none: remove it", a.path)
	case a.path != "":
		if o.DB, err = strconv.Atoi(a.path); err != nil || o.DB < 0 {
			return nil, fmt.Errorf("database: %q: want a number, 0 or more", a.path)
		}
	}
	timeout, err := a.timeout()
	if err != nil {
		return nil, err
	}
	servers, err := a.login("", scheme == "rediss")
	if err != nil {
		return nil, err
	}
	if servers.password != nil {
		o.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
			password, err = servers.password()
			return servers.user, password, err
		}
	}
	opts := []redispermits.Option{redispermits.WithTLS(servers.tls)}
	if o.MasterName != "" {
		s, err := a.sentinels(servers)
		if err != nil {
			return nil, err
		}
		opts = append(opts, redispermits.WithSentinels(
			redispermits.Sentinels{Username: s.user, Password: s.password, TLS: s.tls}))
	}
	return redispermits.Open(o, timeout, opts...), nil
}
