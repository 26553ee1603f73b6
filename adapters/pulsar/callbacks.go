package pulsarthrottle

import "github.com/apache/pulsar-client-go/pulsar"

// nameInCallbacks makes the client's callbacks name c in place of the client's consumer. The
// client runs some of them before it has returned its consumer, on the goroutine that reads the
// connection, where they cannot wait for it: those name the client's consumer.
func (c *Consumer) nameInCallbacks(options *pulsar.ConsumerOptions) {
	var interceptors pulsar.ConsumerInterceptors
	// With several topics the client closes a consumer for each, which is not the end of c.
	if options.TopicsPattern == "" && len(options.Topics) <= 1 && !options.RetryEnable {
		interceptors = append(interceptors, closeObserver{c})
	}
	for _, i := range options.Interceptors {
		interceptors = append(interceptors, interceptor{i, c})
	}
	options.Interceptors = interceptors
	if options.EventListener != nil {
		options.EventListener = listener{options.EventListener, c}
	}
}

// named returns c, once it may be used.
func (c *Consumer) named(inner pulsar.Consumer) pulsar.Consumer {
	if c.started.Load() {
		return c
	}
	return inner
}

// An interceptor calls a user's interceptor with c.
type interceptor struct {
	user pulsar.ConsumerInterceptor
	c    *Consumer
}

func (i interceptor) BeforeConsume(m pulsar.ConsumerMessage) {
	m.Consumer = i.c.named(m.Consumer)
	i.user.BeforeConsume(m)
}

func (i interceptor) OnAcknowledge(inner pulsar.Consumer, id pulsar.MessageID) {
	i.user.OnAcknowledge(i.c.named(inner), id)
}

func (i interceptor) OnNegativeAcksSend(inner pulsar.Consumer, ids []pulsar.MessageID) {
	i.user.OnNegativeAcksSend(i.c.named(inner), ids)
}

func (i interceptor) OnConsumerClose(inner pulsar.Consumer, err error) {
	if user, ok := i.user.(pulsar.ConsumerCloseInterceptor); ok {
		user.OnConsumerClose(i.c.named(inner), err)
	}
}

// A listener calls a user's listener with c.
type listener struct {
	user pulsar.ConsumerEventListener
	c    *Consumer
}

func (l listener) BecameActive(inner pulsar.Consumer, topic string, partition int32) {
	l.user.BecameActive(l.c.named(inner), topic, partition)
}

func (l listener) BecameInactive(inner pulsar.Consumer, topic string, partition int32) {
	l.user.BecameInactive(l.c.named(inner), topic, partition)
}
