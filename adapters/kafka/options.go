package kafkathrottle

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// DefaultSubscription is the subscription that all Readers without a GroupID share.
const DefaultSubscription = "standalone"

// An Option changes how a Reader is opened.
type Option func(*options)

type options struct {
	topic        func(string) string
	subscription string
	owner        []dispatch.SubscriptionOption
	tagOf        func(*kafka.Message) string
}

func newOptions(cfg kafka.ReaderConfig, opts []Option) options {
	o := options{subscription: cmp.Or(cfg.GroupID, DefaultSubscription)}
	WithNamespace("public/default")(&o)
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// fullNames returns the full names of Kafka's topics.
func (o options) fullNames(topics []string) (full []string, err error) {
	for _, topic := range topics {
		name, parseErr := policy.ParseTopic(o.topic(topic))
		if parseErr != nil {
			err = errors.Join(err, fmt.Errorf("kafkathrottle: topic %s: %w", topic, parseErr))
		}
		full = append(full, name.String())
	}
	return full, err
}

// WithNamespace applies the limits of kafka://namespace/<topic>. namespace is tenant/namespace; the
// default is public/default.
func WithNamespace(namespace string) Option {
	prefix := policy.Kafka + "://" + namespace + "/"
	return WithTopic(func(topic string) string { return prefix + topic })
}

// WithTopic applies the limits of name(topic), a full name such as kafka://public/default/orders.
func WithTopic(name func(topic string) string) Option {
	return func(o *options) { o.topic = name }
}

// WithSubscription sets the name of the subscription. The default is the GroupID, and without one
// [DefaultSubscription].
func WithSubscription(name string) Option {
	return func(o *options) { o.subscription = name }
}

// WithOwner sets whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. The
// default is the topic's tenant.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf sets the function that returns a message's tag, "" for none. The throughput quota of
// that tag applies to the message, unless the Reader has a tenant group. tag is called at least
// once for each message; it must not keep or change the message. The default is the Reader's own
// tag.
func WithTagOf(tag func(m *kafka.Message) string) Option {
	return func(o *options) { o.tagOf = tag }
}
