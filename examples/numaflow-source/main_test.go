package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestSource delivers a whole topic at the limit. The messages that a dead data plane had read are
// delivered again, and a restart continues at the first unacknowledged message.
func TestSource(t *testing.T) {
	const messages = 600
	k := services.Kafka(t)
	topic := services.Name(t)
	k.CreateTopic(topic, 2)
	w := &kafka.Writer{Addr: kafka.TCP(k.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond}
	var all []kafka.Message
	var want []string
	for i := range messages {
		all, want = append(all, kafka.Message{Value: fmt.Append(nil, i)}), append(want, fmt.Sprint(i))
	}
	require.NoError(t, w.WriteMessages(t.Context(), all...))
	require.NoError(t, w.Close())

	env := append(dataplane.Env(t, "messageRate: 100/s, caughtUp: {throttle: true}", "memory:"),
		"NUMAFLOW_REPLICA=0", "KAFKA_BROKERS="+strings.Join(k.Brokers, ","), "KAFKA_TOPIC="+topic,
		"KAFKA_GROUP="+topic)
	binary := dataplane.Build(t, ".")
	run := func() *dataplane.Vertex { return dataplane.Start(t, dataplane.Source, env, binary) }
	v := run()
	var read []string
	for range 30 { // the first join of a group takes its time
		v.DieAfterRead(dataplane.Batch{Size: 40, Timeout: time.Second})
		if read = v.Values(); len(read) > 0 {
			break
		}
	}
	require.NotEmpty(t, read)
	stop := v.Source(dataplane.Batch{Size: 50, Timeout: time.Second})
	require.Eventually(t, func() bool { return len(v.Values()) >= len(read)+250 }, throttletest.Patience, 10*time.Millisecond)
	neverOver(t, v)
	stop()
	v.Stop()
	first := v.Values()
	for _, value := range read {
		assert.Contains(t, first[len(read):], value, "it comes again")
	}

	v = run()
	stop = v.Source(dataplane.Batch{Size: 50, Timeout: time.Second})
	require.Eventually(t, func() bool { return len(v.Values()) >= messages-(len(first)-len(read)) },
		throttletest.Patience, 10*time.Millisecond)
	time.Sleep(time.Second) // nothing else comes
	stop()
	v.Stop()
	got := append(slices.Clone(first[len(read):]), v.Values()...)
	assert.ElementsMatch(t, want, got)
}

// neverOver checks that no more messages have arrived since the first one than the limit allows.
func neverOver(t *testing.T, v *dataplane.Vertex) {
	t.Helper()
	const batch = 51
	assert.NoError(t, window.WithinRate(100, 250*time.Millisecond, batch, window.Times(v.Arrivals())))
}
