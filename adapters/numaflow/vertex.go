// Package numaflowthrottle puts the limits of a dispatch.Limiter in front of user-defined vertices of Numaflow, written
// with numaflow-go. Each wrapper is one line around what the user has written:
//
//	src, err := numaflowthrottle.Source(mySource, lim)
//	err = sourcer.NewServer(src).Start(ctx)
//	err = errors.Join(err, lim.Close()) // gives back what is booked; a log.Fatal before would not
//
// The topic is numaflow://namespace/pipeline/vertex, of Numaflow's environment; of a MonoVertex, whose containers all have
// one name, numaflow://namespace/monovertex/monovertex. So wrap one part of a vertex, or each message is charged twice.
//
// Where nothing is limited, a wrapper hands everything to what it wraps: a call more for a batch, and for a message of a source
// or reducer the way through a channel. A limit that comes holds
// from the next message, of a source, sink or batch map from the next batch.
//
// If the Limiter is closed first, a source reads nothing, and what comes to a sink or map is answered with a nack, so that
// it comes again.
package numaflowthrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/mapper"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// The environment that Numaflow sets.
const (
	envNamespace  = "NUMAFLOW_NAMESPACE"
	envPipeline   = "NUMAFLOW_PIPELINE_NAME"
	envVertex     = "NUMAFLOW_VERTEX_NAME"
	envMonoVertex = "NUMAFLOW_MONO_VERTEX_NAME"
)

// Topic names the vertex that this process is a part of, by Numaflow's environment. The error tells what is not set, or is no name.
func Topic() (policy.Topic, error) {
	mono := os.Getenv(envMonoVertex)
	t := policy.Topic{
		Scheme: policy.Numaflow, Tenant: os.Getenv(envNamespace),
		Namespace: cmp.Or(os.Getenv(envPipeline), mono), Name: cmp.Or(os.Getenv(envVertex), mono),
	}
	if err := t.Validate(); err != nil {
		return policy.Topic{}, fmt.Errorf("numaflowthrottle: the topic by %s, %s and %s, or %s: %w; outside of Numaflow, say WithTopic",
			envNamespace, envPipeline, envVertex, envMonoVertex, err)
	}
	return t, nil
}

// An Option changes how something is wrapped.
type Option func(*options)

type options struct {
	topic        string
	subscription string
	log          *slog.Logger
	chargeDrops  bool
	requeue      int
	process      context.Context
	owner        []dispatch.SubscriptionOption
	tagOf        func(headers map[string]string) string
}

// WithTopic names the topic. Default: [Topic].
func WithTopic(topic string) Option { return func(o *options) { o.topic = topic } }

// WithSubscription names the subscription, of which a topic's limit is shared by weight. Default: the vertex.
func WithSubscription(name string) Option { return func(o *options) { o.subscription = name } }

// WithLogger has the wrapper say what people should know. Default: slog.Default().
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithChargedDrops keeps the permit of a message all of whose results are dropped. Default: it goes back, for another
// message. Of maps and source transformers only.
func WithChargedDrops() Option { return func(o *options) { o.chargeDrops = true } }

// WithOwner says whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. Default: that of tenant:NAMESPACE, Kubernetes's.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf says by its headers which tag a message carries, "" for none; the quota of that tag applies to it, unless there is a tenant group.
// Default: the wrapper's own tag. Of sinks, maps and transformers only: a source has permits before it has messages.
func WithTagOf(tag func(headers map[string]string) string) Option {
	return func(o *options) { o.tagOf = tag }
}

// WithProcess says by ctx when the process is to end, as signal.NotifyContext does: what then still waits for a permit after ten
// seconds is refused, so that the data plane has its answers within the 15 s for which the SDK waits. Default: it waits until the
// SDK ends its stream, and the data plane sends it again. Of sinks, maps and transformers only.
func WithProcess(ctx context.Context) Option { return func(o *options) { o.process = ctx } }

// refuseAfter is how long who waits may go on when the process is to end.
const refuseAfter = 10 * time.Second

// A vertex is what wrappers share.
type vertex struct {
	sub *dispatch.Subscription
	options
	refusing   context.Context // who waits is refused when it ends
	complained sync.Once
}

func newVertex(lim *dispatch.Limiter, opts []Option) (*vertex, error) {
	v := &vertex{options: options{log: slog.Default()}}
	for _, opt := range opts {
		opt(&v.options)
	}
	if v.topic == "" {
		topic, err := Topic()
		if err != nil {
			return nil, err
		}
		v.topic = topic.String()
	}
	topic, err := policy.ParseTopic(v.topic)
	if err != nil {
		return nil, fmt.Errorf("numaflowthrottle: %w", err)
	}
	if v.process != nil {
		refusing, refuse := context.WithCancel(context.Background())
		context.AfterFunc(v.process, func() { time.AfterFunc(refuseAfter, refuse) })
		v.refusing = refusing
	}
	v.sub, err = lim.Subscription(v.topic, cmp.Or(v.subscription, topic.Name), v.owner...)
	if err != nil {
		return nil, fmt.Errorf("numaflowthrottle: %w", err)
	}
	return v, nil
}

// free says that no message needs a permit now.
func (v *vertex) free() bool {
	return !v.sub.Limited() && (v.tagOf == nil || !v.sub.TagsLimited())
}

// admit waits for the permit of a message.
func (v *vertex) admit(ctx context.Context, bytes int64, headers map[string]string) (dispatch.Grant, error) {
	sub := v.sub
	if v.tagOf != nil {
		sub = sub.Tagged(v.tagOf(headers))
	}
	if v.refusing != nil && sub.Limited() {
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(v.refusing, cancel)()
		ctx = waiting
	}
	return sub.AcquireSized(ctx, bytes)
}

// size is what of a message counts as its bytes: its value, its keys, and the names and values of its headers.
func size(value []byte, keys []string, headers map[string]string) int64 {
	n := len(value)
	for _, k := range keys {
		n += len(k)
	}
	for k, v := range headers {
		n += len(k) + len(v)
	}
	return int64(n)
}

// complain says, once, that there is no permit because the Limiter is closed, and whether that is so. Else somebody has stopped waiting.
func (v *vertex) complain(err error) (closed bool) {
	closed = errors.Is(err, dispatch.ErrClosed)
	if closed {
		v.complained.Do(func() {
			v.log.Error("numaflowthrottle: the Limiter is closed before the server has ended: close it after Start", "topic", v.topic)
		})
	}
	return closed
}

// nackDelay is for what could have no permit, in milliseconds: the data plane need not try at once.
const nackDelay = 1000

// nack is how a message is refused that could have no permit: it comes again.
func nack(err error) *mapper.NackOptions {
	reason := err.Error()
	return &mapper.NackOptions{Reason: &reason, Delay: new(uint64(nackDelay))}
}
