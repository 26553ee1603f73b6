package pulsar_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestBrokerRestart: a broker is killed while processes wait for permits, and restarts. They
// continue and no message is lost. Meanwhile, a Consumer of this process waits on, and another one
// is closed.
func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	const messages, rate = 1500, 150
	broker := services.StartPulsar(t)
	s := newScene(t, &broker.PulsarBroker, services.Patient(services.Redis(t)), messages, "a", "b")
	s.limit(rate)
	begin := time.Now()
	all := fleet.Fleet{
		s.start(0, "a", pulsar.Shared, s.env()),
		s.start(1, "a", pulsar.Shared, s.env()),
		s.start(2, "b", pulsar.Exclusive, s.env()),
	}
	paused := openPaused(t, &broker.PulsarBroker)
	more(t, 40, all, "a", "b")
	broker.Kill()
	paused.withoutBroker()
	broker.Start()
	paused.resume()
	more(t, 50, all, "a", "b")
	require.NoError(t, fleet.WithinRate(all.Messages(""), rate, begin, slack))
	s.limit(100_000)
	complete(t, messages, all, "a", "b")
	for _, p := range all {
		p.Stop(t)
	}
}

// paused has two Consumers of a subscription with 20 messages, of which one has received two. Then
// its policy was paused.
type paused struct {
	t           *testing.T
	lim         *throttletest.Limiter
	stays, goes *pulsarthrottle.Consumer
	ended       chan error // of a Receive of the one that goes
}

func openPaused(t *testing.T, broker *services.PulsarBroker) *paused {
	t.Helper()
	s := newScene(t, broker, services.Patient(services.Redis(t)), 20, "billing")
	client, err := newClient(broker.URL)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	p := &paused{t: t, lim: throttletest.Open(t, fast), ended: make(chan error, 1)}
	open := func() *pulsarthrottle.Consumer {
		c, err := pulsarthrottle.Subscribe(client, pulsar.ConsumerOptions{
			Topic: s.topic, SubscriptionName: "billing", Type: pulsar.Shared,
		}, p.lim.Limiter)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	p.stays, p.goes = open(), open()
	p.receive(2)
	p.lim.Set(policy.Policy{Paused: new(true)})
	p.quiet() // there was a poll
	go func() {
		_, err := p.goes.Receive(context.Background())
		p.ended <- err
	}()
	return p
}

var fast = policy.Policy{MessageRate: policy.PerSecond(2000)}

// receive receives and acknowledges n messages, and returns their payloads.
func (p *paused) receive(n int) (payloads []string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), throttletest.Patience)
	defer cancel()
	for range n {
		m, err := p.stays.Receive(ctx)
		require.NoError(p.t, err)
		require.NoError(p.t, p.stays.Ack(m))
		payloads = append(payloads, string(m.Payload()))
	}
	return payloads
}

// quiet requires that no message comes.
func (p *paused) quiet() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err := p.stays.Receive(ctx)
	require.ErrorIs(p.t, err, context.DeadlineExceeded)
}

// withoutBroker: one Consumer waits on, and Close of the other one returns, and ends its Receive.
func (p *paused) withoutBroker() {
	p.t.Helper()
	p.quiet()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.goes.Close()
	}()
	select {
	case <-closed:
	case <-time.After(throttletest.Patience):
		require.Fail(p.t, "Close hangs")
	}
	require.Error(p.t, <-p.ended)
}

// resume: messages that were not acknowledged come, also those that the closed Consumer had.
func (p *paused) resume() {
	p.t.Helper()
	p.lim.Set(fast)
	seen := map[string]bool{}
	for len(seen) < 18 {
		seen[p.receive(1)[0]] = true // some may come twice
	}
}
