package kafkathrottle

import "github.com/dispatchthrottle/throttle/policy"

// DefaultSubscription is the subscription of Readers without a GroupID, all of them together.
const DefaultSubscription = "standalone"

// An Option changes how a Reader is opened.
type Option func(*options)

type options struct {
	topic        func(string) string
	subscription string
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
