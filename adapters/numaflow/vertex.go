// Package numaflowthrottle puts the limits of a dispatch.Limiter in front of user-defined vertices of Numaflow, written
// with numaflow-go. Each wrapper is one line around what the user has written:
//
//	src, err := numaflowthrottle.Source(mySource, lim)
//	err = sourcer.NewServer(src).Start(ctx)
//	err = errors.Join(err, lim.Close()) // gives back what is allocated; a log.Fatal before would not
//
// The topic is numaflow://namespace/pipeline/vertex, of Numaflow's environment; of a MonoVertex, whose containers all have
// one name, numaflow://namespace/monovertex/monovertex. So wrap one part of a vertex, or each message is charged twice.
//
// Where nothing is limited, a wrapper hands everything to what it wraps: a call more for a batch, and for a message of a source,
// sink or reducer the way through a channel. A limit that comes holds
// from the next message, of a source, sink or batch map from the next batch.
//
// If the Limiter is closed first, a source reads nothing, and what comes to a sink or map waits until its stream ends.
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
	nacks        bool
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

// WithProcess says by ctx when the process is to end, as signal.NotifyContext does. What then still waits after four seconds is
// handed back, so that a stop takes at most five: a sink answers with a failure, or with a nack ([WithNacks]); a map only with
// WithNacks. Default: it waits until the SDK ends its stream. Of sinks, maps and transformers only.
func WithProcess(ctx context.Context) Option { return func(o *options) { o.process = ctx } }

// WithNacks has a sink or map answer with a nack where it would retry or wait: a sink what is [Busy], both what still waits when
// the process ends ([WithProcess]). The data plane passes a nack to the source, and goes on.
//
// Use it only if the source redelivers: Pulsar, JetStream, SQS, and user-defined sources whose Nack does, as that of
// examples/numaflow-source. In a pipeline, vertices behind the source are fed by JetStream, which does. The generator, NATS
// core and the built-in Kafka source ignore nacks: the message is lost, and Kafka commits past it.
func WithNacks() Option { return func(o *options) { o.nacks = true } }

// handBackAfter is how long callers may wait for permits when the process is to end.
const handBackAfter = 4 * time.Second

// A vertex is what wrappers share.
type vertex struct {
	sub *dispatch.Subscription
	options
	handBack   context.Context // ends when messages that wait are handed back; nil: never
	ahead      ahead
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
		handBack, cancel := context.WithCancel(context.Background())
		context.AfterFunc(v.process, func() { time.AfterFunc(handBackAfter, cancel) })
		v.handBack = handBack
	}
	v.sub, err = lim.Subscription(v.topic, cmp.Or(v.subscription, topic.Name), v.owner...)
	if err != nil {
		return nil, fmt.Errorf("numaflowthrottle: %w", err)
	}
	v.ahead = ahead{sub: v.sub, one: true}
	return v, nil
}

// free says that no message needs a permit now.
func (v *vertex) free() bool {
	return !v.sub.Limited() && (v.tagOf == nil || !v.sub.TagsLimited())
}

// patience returns a context for callers that wait for permits. It ends with ctx, or when they have waited long enough in a process that
// is to end. What begins after that is handed back in its turn. But where that is a nack, and the source may deliver again at once,
// it waits for its permits, so that only the messages that wait once are nacked, and what comes again is bounded by the limit.
func (v *vertex) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case v.handBack == nil:
		return ctx, func() {}
	case v.handBack.Err() == nil:
		waiting, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(v.handBack, cancel)
		return waiting, func() { stop(); cancel() }
	case v.nacks:
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, handBackAfter)
}

// permit waits for the permit of a message.
func (v *vertex) permit(ctx context.Context, bytes int64, headers map[string]string) (dispatch.Grant, error) {
	sub := v.sub
	if v.tagOf != nil {
		sub = sub.Tagged(v.tagOf(headers))
	}
	return sub.AcquireSized(ctx, bytes)
}

// admit returns the permit of a message that comes by itself, at once with others: one that was acquired ahead, or it waits.
func (v *vertex) admit(ctx context.Context, bytes int64, headers map[string]string) (dispatch.Grant, error) {
	if v.free() {
		return dispatch.Grant{}, nil
	}
	if v.nacks { // else a map hands back nothing
		waiting, cancel := v.patience(ctx)
		defer cancel()
		ctx = waiting
	}
	if v.tagOf != nil { // which limits apply is not known before
		return v.permit(ctx, bytes, headers)
	}
	if grant, ok := v.ahead.take(); ok {
		return grant, nil
	}
	v.ahead.enter()
	begin := time.Now()
	defer func() { v.ahead.leave(waited(begin)) }()
	return v.permit(ctx, bytes, headers)
}

// waited reports whether permits were not there.
func waited(begin time.Time) bool { return time.Since(begin) > time.Millisecond }

// An admission is that of a batch, whose messages come one after the other.
type admission struct {
	*vertex
	waited bool
}

func (v *vertex) admission() *admission {
	v.ahead.enter()
	return &admission{vertex: v}
}

// next returns the permit of the next message.
func (a *admission) next(ctx context.Context, bytes int64, headers map[string]string) (dispatch.Grant, error) {
	if a.tagOf != nil {
		return a.permit(ctx, bytes, headers)
	}
	if grant, ok := a.ahead.take(); ok {
		return grant, nil
	}
	begin := time.Now()
	defer func() { a.waited = a.waited || waited(begin) }()
	return a.permit(ctx, bytes, headers)
}

// end is when the last message has its permit.
func (a *admission) end() { a.ahead.leave(a.waited) }

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

// refuse says why a message has no permit. If the Limiter is closed, it keeps the message until the stream ends, so that nothing
// is lost and the data plane does not ask again at once; a nack takes a second.
func (v *vertex) refuse(ctx context.Context, err error) {
	if !v.complain(err) {
		return
	}
	if v.nacks {
		waiting, cancel := context.WithTimeout(ctx, nackDelay)
		defer cancel()
		ctx = waiting
	}
	<-ctx.Done()
}

// nackDelay is for what could have no permit: the source need not deliver it at once.
const nackDelay = time.Second

// nack is how a message is refused that could have no permit: it comes again, if the source redelivers.
func nack(err error) *mapper.NackOptions {
	return &mapper.NackOptions{Reason: new(err.Error()), Delay: new(uint64(nackDelay.Milliseconds()))}
}
