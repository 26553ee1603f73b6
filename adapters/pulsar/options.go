package pulsarthrottle

import (
	"log/slog"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// DefaultReader is the subscription that all readers without a name share.
const DefaultReader = "reader"

// An Option changes how a Consumer or Reader is opened.
type Option func(*options)

type options struct {
	admin        pulsaradmin.Client
	subscription string
	log          *slog.Logger
	owner        []dispatch.SubscriptionOption
	tagOf        func(pulsar.Message) string
	broker, zone string
}

func newOptions(opts []Option) options {
	o := options{log: slog.Default(), broker: "pulsar", zone: "pulsar"}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithAdmin takes backlogs from an admin API: msgBacklog of the subscription, once a second for
// each topic with a limit, in one request for all Consumers of this process with the same client.
//
// Without it, and while it fails, Consumers ask the broker for the ends of their partitions,
// which takes no rights. That tells how far behind a Consumer is while it is in the last ledger
// of a partition; before, it tells only that the Consumer is behind. Readers always use the ends.
// The client cannot ask for the ends of a TopicsPattern: without an admin API, such a Consumer
// has caught up when it has had no message for a second.
func WithAdmin(client pulsaradmin.Client) Option {
	return func(o *options) { o.admin = client }
}

// WithLogger sets where failures of the admin API are logged. The default is slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(o *options) { o.log = log }
}

// WithSubscription sets the subscription whose limits apply to a Reader. The default is the
// SubscriptionName of its options, or its SubscriptionRolePrefix, or [DefaultReader]. A Consumer
// has its own subscription.
func WithSubscription(name string) Option {
	return func(o *options) { o.subscription = name }
}

// WithOwner sets whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. The
// default is the topic's tenant.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf sets the function that returns a message's tag, "" for none. The throughput quota of
// that tag applies to the message, unless there is a tenant group. A zero-queue consumer, whose
// permits come before the message, ignores it. The default is the Consumer's own tag.
func WithTagOf(tag func(m pulsar.Message) string) Option {
	return func(o *options) { o.tagOf = tag }
}

// WithBroker sets the backend that reading costs, where a throughput quota applies, and its zone.
// The default is pulsar for both: the client does not tell which broker a message came from.
func WithBroker(name, zone string) Option {
	return func(o *options) { o.broker, o.zone = name, zone }
}
