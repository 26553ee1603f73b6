package pulsarthrottle

import (
	"log/slog"

	"github.com/apache/pulsar-client-go/pulsaradmin"
)

// DefaultReader is the subscription of readers without a name, all of them together.
const DefaultReader = "reader"

// An Option changes how a Consumer or Reader is opened.
type Option func(*options)

type options struct {
	admin        pulsaradmin.Client
	subscription string
	log          *slog.Logger
}

// WithAdmin takes backlogs from an admin API (the msgBacklog of subscriptions), once a second for each topic with a limit, one
// request for all Consumers of this process with the same client. Where it fails, as without it, the ends of topics that
// the broker tells every consumer do instead: they tell how far behind one is within a ledger, and across ledgers only
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
