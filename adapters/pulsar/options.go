package pulsarthrottle

import (
	"log/slog"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// DefaultReader is the subscription of readers without a name, all of them together.
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

// WithAdmin takes backlogs from an admin API (the msgBacklog of subscriptions), once a second for each topic with a limit, one
// request for all Consumers of this process with the same client. Where it fails, as without it, the ends of topics that
// the broker tells every consumer do instead: they tell how far behind one is within a permit store, and across permit stores only
// that one is at the end, which counts as caught up, or behind. Readers always go by the ends. A Consumer with a
// TopicsPattern cannot ask for them: without an admin API it has caught up only when nothing comes.
func WithAdmin(client pulsaradmin.Client) Option {
	return func(o *options) { o.admin = client }
}

// WithLogger sets where failures of the admin API go; default is slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(o *options) { o.log = log }
}

// WithSubscription names the subscription that a Reader's limits are for; default is the SubscriptionName of its options, else
// its SubscriptionRolePrefix, else [DefaultReader]. Consumers have that of their own.
func WithSubscription(name string) Option {
	return func(o *options) { o.subscription = name }
}

// WithOwner says whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. Default: that of the topic's tenant.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf says which tag a message carries, "" for none; the quota of that tag applies to it, unless there is a tenant group. Where the
// permit comes before the message (see [Subscribe]), it cannot be known, and does not count. Default: the Consumer's own tag.
func WithTagOf(tag func(m pulsar.Message) string) Option { return func(o *options) { o.tagOf = tag } }

// WithBroker names the backend that what is read costs, where a throughput quota applies, and its zone. Default: pulsar for both, since the
// client does not tell which of a cluster's brokers a message came from.
func WithBroker(name, zone string) Option {
	return func(o *options) { o.broker, o.zone = name, zone }
}

func newOptions(opts []Option) options {
	o := options{log: slog.Default(), broker: "pulsar", zone: "pulsar"}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}
