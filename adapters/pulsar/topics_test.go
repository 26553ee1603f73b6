package pulsarthrottle

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// fromTopic is a message of a topic.
type fromTopic struct {
	pulsar.Message
	topic string
}

func (m fromTopic) Topic() string   { return m.topic }
func (m fromTopic) Payload() []byte { return nil }
func (m fromTopic) Key() string     { return "" }

func (m fromTopic) Properties() map[string]string { return nil }

func (m fromTopic) ID() pulsar.MessageID { return pulsar.EarliestMessageID() }

// TestTopicsOfAPattern: a consumer of a pattern forgets topics without messages, and knows those
// again that have some.
func TestTopicsOfAPattern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(policy.Policy{
			MessageRate: policy.PerSecond(1000),
		})})
		require.NoError(t, err)
		var s stream
		require.NoError(t, s.topics.init(lim, "s", options{broker: "b", zone: "z"}))
		topic := ""
		s.open(func(context.Context) (pulsar.Message, error) { return fromTopic{topic: topic}, nil })
		named, err := s.topics.open("persistent://public/default/named")
		require.NoError(t, err)
		read := func(name string) {
			topic = "persistent://public/default/" + name
			_, grant, err := s.next(t.Context())
			require.NoError(t, err)
			grant.Done(1, 0)
		}
		read("named")
		for i := range 100 {
			read(fmt.Sprintf("gone-%d-partition-1", i))
			read("kept")
			time.Sleep(time.Minute)
		}
		assert.Less(t, len(s.topics.all()), 30)
		assert.Len(t, lim.Stats().Subscriptions, len(s.topics.all()))
		assert.Less(t, len(s.places), 30)
		assert.Same(t, named, s.place("persistent://public/default/named").topic)
		read("gone-1-partition-1")
		assert.Contains(t, s.topics.topics, "persistent://public/default/gone-1")
		s.topics.close()
		require.NoError(t, lim.Close())
	})
}
