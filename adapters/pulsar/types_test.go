package pulsarthrottle_test

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestClientTypes fails when the client's types change by which a consumer or reader is
// recognized: Wrap and the poller would then treat it as another.
func TestClientTypes(t *testing.T) {
	w := newBrokerClient(t)
	topic, partitioned := w.topic(0), w.topic(2)
	for name, c := range map[string]struct {
		options       pulsar.ConsumerOptions
		zero, pattern bool
	}{
		"one topic":         {pulsar.ConsumerOptions{Topic: topic}, false, false},
		"partitions":        {pulsar.ConsumerOptions{Topic: partitioned}, false, false},
		"several topics":    {pulsar.ConsumerOptions{Topics: []string{topic, partitioned}}, false, false},
		"with retry topics": {pulsar.ConsumerOptions{Topic: topic, RetryEnable: true}, false, false},
		"pattern":           {pulsar.ConsumerOptions{TopicsPattern: topic + ".*"}, false, true},
		"zero queue":        {pulsar.ConsumerOptions{Topic: topic, EnableZeroQueueConsumer: true}, true, false},
	} {
		c.options.SubscriptionName, c.options.Type = name, pulsar.Shared
		inner, err := w.client.Subscribe(c.options)
		require.NoError(t, err, name)
		defer inner.Close()
		assert.Equal(t, c.zero, pulsarthrottle.IsZeroQueue(inner), name)
		assert.Equal(t, c.pattern, pulsarthrottle.HasPattern(inner), name)
		if ids, err := inner.GetLastMessageIDs(); !c.pattern && assert.NoError(t, err, name) {
			assert.NotEmpty(t, ids, "%s: it can be asked for its ends", name)
		}
	}
	for topic, asked := range map[string]bool{topic: true, partitioned: false} {
		r, err := w.client.CreateReader(pulsar.ReaderOptions{
			Topic: topic, StartMessageID: pulsar.EarliestMessageID(),
		})
		require.NoError(t, err)
		defer r.Close()
		_, err = r.GetLastMessageID()
		assert.Equal(t, asked, err == nil, "%s: %v", topic, err)
	}
}

// A channelless consumer, of the user's own, has no channel, which does not make it a zero-queue
// consumer.
type channelless struct{ endless }

func (channelless) Chan() <-chan pulsar.ConsumerMessage { panic("this consumer has no channel") }

func TestWrapLeavesTheChannelAlone(t *testing.T) {
	c, err := pulsarthrottle.Wrap(channelless{}, throttletest.Open(t, slow()).Limiter)
	require.NoError(t, err)
	defer c.Close()
	receiveOne(t, c)
}

// A patterned consumer has a pattern, like the client's, and counts how often its ends are asked
// for.
type patterned struct {
	endless
	pattern *regexp.Regexp
	asked   *atomic.Int32
}

func (p patterned) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) {
	p.asked.Add(1)
	return nil, errors.New("a map is read and written at the same time")
}

func TestAPatternIsNotAskedForItsEnds(t *testing.T) {
	var asked atomic.Int32
	lim := throttletest.Open(t, slow())
	c, err := pulsarthrottle.Wrap(patterned{pattern: regexp.MustCompile("orders"), asked: &asked}, lim.Limiter)
	require.NoError(t, err)
	defer c.Close()
	receiveOne(t, c) // a topic with a limit is known from now on
	time.Sleep(2500 * time.Millisecond)
	require.Zero(t, asked.Load())
}

// partitions is a client of a topic of two partitions, without messages. Its readers cannot be
// asked for their end, like the client's, with an error of their own.
type partitions struct{ pulsar.Client }

func (partitions) TopicPartitions(topic string) ([]string, error) {
	return []string{topic + "-partition-0", topic + "-partition-1"}, nil
}

func (partitions) CreateReader(options pulsar.ReaderOptions) (pulsar.Reader, error) {
	return emptyReader{topic: options.Topic, closed: make(chan struct{})}, nil
}

type emptyReader struct {
	pulsar.Reader
	topic  string
	closed chan struct{}
}

func (r emptyReader) Topic() string { return r.topic }
func (r emptyReader) Close()        { close(r.closed) }

func (emptyReader) GetLastMessageID() (pulsar.MessageID, error) {
	return nil, errors.New("a reader of several partitions has several last messages")
}

func (r emptyReader) Next(ctx context.Context) (pulsar.Message, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.closed:
		return nil, errors.New("closed")
	}
}

// A Reader of several partitions goes by whether messages come, whatever the client's error says.
func TestAReaderOfPartitionsIsNotAskedForItsEnd(t *testing.T) {
	wrap := func(r pulsar.Reader, err error, lim *throttletest.Limiter) (*pulsarthrottle.Reader, error) {
		require.NoError(t, err)
		return pulsarthrottle.WrapReader(r, lim.Limiter)
	}
	options := pulsar.ReaderOptions{Topic: "persistent://public/default/orders"}
	for name, open := range map[string]func(*throttletest.Limiter) (*pulsarthrottle.Reader, error){
		"created": func(lim *throttletest.Limiter) (*pulsarthrottle.Reader, error) {
			return pulsarthrottle.CreateReader(partitions{}, options, lim.Limiter)
		},
		"wrapped": func(lim *throttletest.Limiter) (*pulsarthrottle.Reader, error) {
			r, err := partitions{}.CreateReader(options)
			return wrap(r, err, lim)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lim := throttletest.Open(t, slow())
			r, err := open(lim)
			require.NoError(t, err)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = r.Next(context.Background()) // until it is closed
			}()
			caughtUp(t, only(lim), true)
			r.Close()
			<-ended
		})
	}
}

// A slowAdmin takes its time to return, also when its context has ended.
type slowAdmin struct {
	pulsaradmin.Client
	topics slowTopics
}

func (a *slowAdmin) Topics() admin.Topics { return &a.topics }

type slowTopics struct {
	admin.Topics
	asked    chan struct{}
	returned atomic.Bool
}

func (a *slowTopics) GetPartitionedStatsWithOptionWithContext(
	ctx context.Context, _ utils.TopicName, _ bool, _ utils.GetStatsOptions,
) (stats utils.PartitionedTopicStats, err error) {
	close(a.asked)
	<-ctx.Done()
	time.Sleep(300 * time.Millisecond)
	a.returned.Store(true)
	return stats, ctx.Err()
}

// The last Close returns when the poller has ended.
func TestCloseWaitsForThePoller(t *testing.T) {
	lim := throttletest.Open(t, slow())
	a := &slowAdmin{topics: slowTopics{asked: make(chan struct{})}}
	c, err := pulsarthrottle.Wrap(endless{}, lim.Limiter, pulsarthrottle.WithAdmin(a))
	require.NoError(t, err)
	receiveOne(t, c) // a topic with a limit is known from now on
	<-a.topics.asked
	c.Close()
	require.True(t, a.topics.returned.Load(), "the poller has ended")
}
