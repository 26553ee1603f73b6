package pulsarthrottle_test

import (
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// The client's callbacks get the Consumer that Subscribe returned.
func TestCallbacksNameTheConsumer(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, fast(0))
	for name, topics := range map[string][]string{"one topic": {w.topic(0)}, "topics": {w.topic(0), w.topic(2)}} {
		var s witness
		w.subscribe(topics[0], "billing")
		c := w.open(pulsar.ConsumerOptions{Topics: topics, Type: pulsar.Failover,
			NackRedeliveryDelay: 50 * time.Millisecond,
			Interceptors:        pulsar.ConsumerInterceptors{plain{}, &s}, EventListener: &s}, lim)
		w.produce(topics[0], 20, 1)
		for i := range 20 {
			m := receiveOne(t, c)
			if i == 0 {
				c.Nack(m)
			} else {
				require.NoError(t, c.Ack(m))
			}
		}
		require.Eventually(t, func() bool { return s.last("OnNegativeAcksSend") != nil },
			throttletest.Patience, time.Millisecond)
		require.Eventually(t, func() bool { return s.last("BecameActive") != nil }, throttletest.Patience, time.Millisecond)
		c.Close()
		for _, callback := range []string{"BeforeConsume", "OnAcknowledge", "OnNegativeAcksSend", "OnConsumerClose"} {
			assert.Same(t, c, s.last(callback), "%s: %s", name, callback)
		}
	}
}

// A witness records the consumers that callbacks got.
type witness struct {
	mu   sync.Mutex
	seen map[string]pulsar.Consumer // by callback, the last one
}

// A plain interceptor has no OnConsumerClose.
type plain struct{}

func (s *witness) note(callback string, c pulsar.Consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]pulsar.Consumer{}
	}
	s.seen[callback] = c
}

func (s *witness) last(callback string) pulsar.Consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[callback]
}

func (s *witness) BeforeConsume(m pulsar.ConsumerMessage) {
	s.note("BeforeConsume", m.Consumer)
}
func (s *witness) OnAcknowledge(c pulsar.Consumer, _ pulsar.MessageID) {
	s.note("OnAcknowledge", c)
}
func (s *witness) OnNegativeAcksSend(c pulsar.Consumer, _ []pulsar.MessageID) {
	s.note("OnNegativeAcksSend", c)
}
func (s *witness) OnConsumerClose(c pulsar.Consumer, _ error) {
	s.note("OnConsumerClose", c)
}
func (s *witness) BecameActive(c pulsar.Consumer, _ string, _ int32) { s.note("BecameActive", c) }
func (s *witness) BecameInactive(c pulsar.Consumer, _ string, _ int32) {
	s.note("BecameInactive", c)
}

func (plain) BeforeConsume(pulsar.ConsumerMessage)                   {}
func (plain) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (plain) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}
