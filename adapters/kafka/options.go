package kafkathrottle

import (
	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// DefaultSubscription is the subscription of Readers without a GroupID, all of them together.
const DefaultSubscription = "standalone"

// An Option changes how a Reader is opened.
type Option func(*options)

type options struct {
	topic        func(string) string
	subscription string
	owner        []dispatch.SubscriptionOption
	tagOf        func(*kafka.Message) string
}

// WithNamespace takes the limits of kafka://namespace/<topic>; namespace is tenant/namespace, default public/default.
func WithNamespace(namespace string) Option {
	return WithTopic(func(topic string) string { return policy.Kafka + "://" + namespace + "/" + topic })
}

// WithTopic takes the limits of name(topic), a full name such as kafka://public/default/orders.
func WithTopic(name func(topic string) string) Option {
	return func(o *options) { o.topic = name }
}

// WithSubscription sets the subscription's name; default is the GroupID, and [DefaultSubscription] without one.
func WithSubscription(name string) Option {
	return func(o *options) { o.subscription = name }
}

// WithOwner says whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. Default: that of the topic's tenant.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf says which tag a message carries, "" for none; the quota of that tag applies to it, unless the Reader has a tenant group. It is
// asked once or more for each message, and must not keep or change it. Default: the Reader's own tag.
func WithTagOf(tag func(m *kafka.Message) string) Option { return func(o *options) { o.tagOf = tag } }
