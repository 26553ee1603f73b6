package numaflowthrottle

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Option changes how user code is wrapped.
type Option func(*options)

type options struct {
	topic        string
	subscription string
	log          *slog.Logger
	chargeDrops  bool
	requeue      int
	process      context.Context
	nacks        bool
	owner        []dispatch.SubscriptionOption
	tagOf        func(headers map[string]string) string
}

func newOptions(opts []Option) options {
	o := options{log: slog.Default()}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithTopic sets the topic. The default is [Topic].
func WithTopic(topic string) Option { return func(o *options) { o.topic = topic } }

// WithSubscription sets the subscription. The subscriptions of a topic share its limit by weight.
// The default is the vertex.
func WithSubscription(name string) Option { return func(o *options) { o.subscription = name } }

// WithLogger sets where a wrapper logs. The default is slog.Default().
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithOwner sets whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. The
// default is the tenant of the Kubernetes namespace.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf sets the function that returns a message's tag from its headers, "" for none. The
// throughput quota of that tag applies to the message, unless there is a tenant group. The
// default is the wrapper's own tag. It is for sinks, maps and transformers: a source has permits
// before it has messages.
func WithTagOf(tag func(headers map[string]string) string) Option {
	return func(o *options) { o.tagOf = tag }
}

// The environment that Numaflow sets.
const (
	envNamespace  = "NUMAFLOW_NAMESPACE"
	envPipeline   = "NUMAFLOW_PIPELINE_NAME"
	envVertex     = "NUMAFLOW_VERTEX_NAME"
	envMonoVertex = "NUMAFLOW_MONO_VERTEX_NAME"
)

// Topic returns the name of the vertex that this process is a part of, by Numaflow's environment.
// The error names the variables that are not set or are invalid.
func Topic() (policy.Topic, error) {
	mono := os.Getenv(envMonoVertex)
	t := policy.Topic{
		Scheme: policy.Numaflow, Tenant: os.Getenv(envNamespace),
		Namespace: cmp.Or(os.Getenv(envPipeline), mono), Name: cmp.Or(os.Getenv(envVertex), mono),
	}
	if err := t.Validate(); err != nil {
		return policy.Topic{}, fmt.Errorf("numaflowthrottle: no topic in %s, %s and %s, or %s: %w;"+
			" outside of Numaflow, use WithTopic",
			envNamespace, envPipeline, envVertex, envMonoVertex, err)
	}
	return t, nil
}
