package franzthrottle

import (
	"cmp"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// DefaultSubscription is the subscription that all Clients without a consumer group share.
const DefaultSubscription = "standalone"

// An Option changes how a Client is opened.
type Option func(*options)

type options struct {
	topic        func(string) string
	subscription string
	owner        []dispatch.SubscriptionOption
	tagOf        func(*kgo.Record) string
}

func newOptions(group string, opts []Option) options {
	o := options{subscription: cmp.Or(group, DefaultSubscription)}
	WithNamespace("public/default")(&o)
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithNamespace applies the limits of kafka://namespace/<topic>. namespace is tenant/namespace; the
// default is public/default.
func WithNamespace(namespace string) Option {
	prefix := policy.Kafka + "://" + namespace + "/"
	return WithTopic(func(topic string) string { return prefix + topic })
}

// WithTopic applies the limits of name(topic), a full name such as kafka://public/default/orders.
// Records of a topic whose name is not valid are not returned: a poll returns the error once for
// each of its partitions.
func WithTopic(name func(topic string) string) Option {
	return func(o *options) { o.topic = name }
}

// WithSubscription sets the name of the subscription. The default is the consumer group, and
// without one [DefaultSubscription].
func WithSubscription(name string) Option {
	return func(o *options) { o.subscription = name }
}

// WithOwner sets whose throughput quota applies: dispatch.WithTenantGroup or dispatch.WithTag. The
// default is the topic's tenant.
func WithOwner(owner ...dispatch.SubscriptionOption) Option {
	return func(o *options) { o.owner = owner }
}

// WithTagOf sets the function that returns a record's tag, "" for none. The throughput quota of
// that tag applies to the record, unless the Client has a tenant group. tag is called at least once
// for each record; it must not keep or change the record. The default is the Client's own tag.
func WithTagOf(tag func(r *kgo.Record) string) Option {
	return func(o *options) { o.tagOf = tag }
}

// topic returns the topic of that name, which is opened when it is first seen. The caller holds
// c.shelf.mu.
func (c *Client) topic(name string) *topic {
	t := c.shelf.topics[name]
	if t == nil {
		t = &topic{name: name, positions: map[int32]*position{}, owned: map[int32]bool{}, reported: -1}
		full, err := policy.ParseTopic(c.options.topic(name))
		if err == nil {
			t.sub, err = c.lim.Subscription(full.String(), c.options.subscription, c.options.owner...)
		}
		if err != nil {
			t.err = topicError(name, err)
		}
		c.shelf.topics[name] = t
		c.shelf.order = append(c.shelf.order, t)
	}
	return t
}
