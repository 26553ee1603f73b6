package pulsarthrottle_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// returnsSoon fails unless f returns: the bound is far above the client's operation timeout in these tests.
func returnsSoon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		require.Fail(t, what+" hangs")
	}
}

// requireClosed requires the error with which a loop over the client's Receive ends.
func requireClosed(t testing.TB, err error) {
	t.Helper()
	var theirs *pulsar.Error
	require.ErrorAs(t, err, &theirs)
	require.Equal(t, pulsar.ConsumerClosed, theirs.Result())
}

// ownClient is a client that the test closes.
func (w *brokerClient) ownClient() pulsar.Client {
	w.t.Helper()
	client, err := pulsar.NewClient(clientOptions(w.broker))
	require.NoError(w.t, err)
	return client
}

// TestClientClosesFirst: client.Close returns whatever the Consumer has done before, and ends its waits.
func TestClientClosesFirst(t *testing.T) {
	t.Parallel()
	paused := policy.Policy{Paused: new(true)}
	for name, c := range map[string]struct {
		options pulsar.ConsumerOptions
		limit   policy.Policy
		wait    bool // a Receive without a deadline
	}{
		"after a timeout":             {pulsar.ConsumerOptions{}, perSecond(100), false},
		"after a timeout, zero-queue": {pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, perSecond(100), false},
		"while a Receive waits":       {pulsar.ConsumerOptions{}, perSecond(100), true},
		"while a message waits":       {pulsar.ConsumerOptions{}, paused, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			lim := throttletest.Open(t, c.limit)
			client := w.ownClient()
			defer client.Close()
			c.options.Topic, c.options.SubscriptionName = w.topic(0), "billing"
			w.subscribe(c.options.Topic, "billing")
			if c.limit.Paused != nil {
				w.produce(c.options.Topic, 1, 1)
			}
			consumer, err := pulsarthrottle.Subscribe(client, c.options, lim.Limiter)
			require.NoError(t, err)
			for range 3 {
				quiet(t, consumer, 20*time.Millisecond)
			}
			ended := make(chan error, 1)
			if c.wait {
				go func() {
					_, err := consumer.Receive(context.Background())
					ended <- err
				}()
				time.Sleep(100 * time.Millisecond)
			}
			returnsSoon(t, "client.Close", client.Close)
			if !c.options.EnableZeroQueueConsumer { // that has an error of no type
				if !c.wait {
					_, err := consumer.Receive(context.Background())
					ended <- err
				}
				returnsSoon(t, "Receive", func() { err = <-ended })
				requireClosed(t, err)
			}
			if !c.wait { // the client's consumer, closed, does not come back from a Seek
				returnsSoon(t, "Seek", func() { err = consumer.SeekByTime(time.Now()) })
				require.Error(t, err)
			}
			returnsSoon(t, "Close", consumer.Close)
		})
	}
}

// TestErrorsAfterClose: every method of a closed Consumer or Reader returns the client's error, and returns at all.
func TestErrorsAfterClose(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, perSecond(50))
	topic := w.topic(0)
	w.produce(topic, 5, 1)
	for name, options := range map[string]pulsar.ConsumerOptions{
		"one topic": {Topic: topic},
		"topics":    {Topics: []string{topic, w.topic(0)}},
		"pattern":   {TopicsPattern: topic + ".*"},
	} {
		options.SubscriptionName = name
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
		c := w.open(options, lim)
		m := receiveOne(t, c)
		waiting := make(chan error, 1)
		go func() {
			for {
				if _, err := c.Receive(context.Background()); err != nil {
					waiting <- err
					return
				}
			}
		}()
		c.Close()
		requireClosed(t, <-waiting)
		_, err := c.Receive(t.Context())
		requireClosed(t, err)
		for method, call := range map[string]func() error{
			"Unsubscribe":       c.Unsubscribe,
			"UnsubscribeForce":  c.UnsubscribeForce,
			"Seek":              func() error { return c.Seek(m.ID()) },
			"SeekByTime":        func() error { return c.SeekByTime(time.Now()) },
			"Ack":               func() error { return c.Ack(m) },
			"AckID":             func() error { return c.AckID(m.ID()) },
			"GetLastMessageIDs": func() error { _, err := c.GetLastMessageIDs(); return err },
		} {
			returnsSoon(t, name+": "+method, func() { err = call() })
			assert.Error(t, err, "%s: %s", name, method)
		}
		c.Nack(m)
		c.Chan()
		_, err = c.Receive(t.Context())
		requireClosed(t, err)
	}

	r := w.reader(pulsar.ReaderOptions{Topic: topic}, lim)
	m := next(t, r)
	r.Close()
	_, err := r.Next(t.Context())
	requireClosed(t, err)
	returnsSoon(t, "Seek of a Reader", func() { err = r.Seek(m.ID()) })
	require.Error(t, err)
	returnsSoon(t, "SeekByTime of a Reader", func() { err = r.SeekByTime(time.Now()) })
	require.Error(t, err)
}

// TestRefused: what Pulsar refuses is refused with the client's own error; what only policies cannot name, with a *policy.FieldError.
func TestRefused(t *testing.T) {
	w := newBrokerClient(t)
	lim := throttletest.Open(t, perSecond(10))
	good := w.topic(0)
	same := func(what any, theirs, ours error) {
		t.Helper()
		require.Error(t, theirs, "%+v", what)
		require.Error(t, ours, "%+v", what)
		assert.Equal(t, fmt.Sprintf("%T %[1]v", theirs), fmt.Sprintf("%T %[1]v", ours), "%+v", what)
	}
	for _, options := range []pulsar.ConsumerOptions{
		{},
		{SubscriptionName: "s"},
		{Topic: good},
		{Topics: []string{}, SubscriptionName: "s"},
		{Topic: good, SubscriptionName: "s", PriorityLevel: -1},
		{Topic: good, SubscriptionName: "s", NackPrecisionBit: new(int64(-1))},
		{Topic: good, SubscriptionName: "s", RetryEnable: true, EnableZeroQueueConsumer: true},
		{Topic: w.topic(2), SubscriptionName: "s", EnableZeroQueueConsumer: true},
		{Topic: "a/b", SubscriptionName: "s"},
		{Topic: "mqtt://public/default/t", SubscriptionName: "s"},
		{Topic: "persistent://public/default", SubscriptionName: "s"},
		{Topic: "persistent://absent/default/t", SubscriptionName: "s"},
		{Topics: []string{good, "://"}, SubscriptionName: "s"},
		{TopicsPattern: "persistent://public/default/(", SubscriptionName: "s"},
	} {
		_, theirs := w.client.Subscribe(options)
		_, ours := pulsarthrottle.Subscribe(w.client, options, lim.Limiter)
		same(options, theirs, ours)
	}
	for _, options := range []pulsar.ReaderOptions{
		{},
		{Topic: good},
		{StartMessageID: pulsar.EarliestMessageID()},
		{Topic: "a/b", StartMessageID: pulsar.EarliestMessageID()},
		{Topic: "persistent://absent/default/t", StartMessageID: pulsar.EarliestMessageID()},
	} {
		_, theirs := w.client.CreateReader(options)
		_, ours := pulsarthrottle.CreateReader(w.client, options, lim.Limiter)
		same(options, theirs, ours)
	}
	var fault *policy.FieldError
	_, err := pulsarthrottle.Subscribe(w.client, pulsar.ConsumerOptions{Topic: good, SubscriptionName: "a\tb"}, lim.Limiter)
	require.ErrorAs(t, err, &fault)
	_, err = pulsarthrottle.CreateReader(w.client, pulsar.ReaderOptions{Topic: good, StartMessageID: pulsar.EarliestMessageID()}, lim.Limiter,
		pulsarthrottle.WithSubscription("a\tb"))
	require.ErrorAs(t, err, &fault)
	assert.Empty(t, lim.Stats().Subscriptions, "nothing stays open")

	require.NoError(t, lim.Close())
	_, err = pulsarthrottle.Subscribe(w.client, pulsar.ConsumerOptions{Topic: good, SubscriptionName: "s"}, lim.Limiter)
	require.ErrorIs(t, err, dispatch.ErrClosed)
}

// TestUndecryptable: a message that cannot be decrypted comes as it is where the consumer asks for that.
func TestUndecryptable(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	topic := w.topic(0)
	w.subscribe(topic, "billing")
	keys := newKeyring(t)
	p, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true,
		Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"k"}}})
	require.NoError(t, err)
	defer p.Close()
	for range 3 {
		_, err := p.Send(t.Context(), &pulsar.ProducerMessage{Payload: []byte("secret")})
		require.NoError(t, err)
	}
	lim := throttletest.Open(t, perSecond(100))
	c := w.open(pulsar.ConsumerOptions{Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{
		ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
	}}, lim)
	for range 3 {
		m := receiveOne(t, c)
		assert.NotEqual(t, "secret", string(m.Payload()))
		require.NoError(t, c.Ack(m))
	}
}

// A keyring has the public half of a key that nobody keeps.
type keyring struct{ public []byte }

func newKeyring(t testing.TB) keyring {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	return keyring{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}
}

func (k keyring) PublicKey(name string, _ map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k.public, nil), nil
}

func (keyring) PrivateKey(name string, _ map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, fmt.Errorf("there is no private key %s", name)
}

// A witness records which consumers a client's callbacks name.
type witness struct {
	mu   sync.Mutex
	seen map[string]pulsar.Consumer // by callback, the last one
}

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

func (s *witness) BeforeConsume(m pulsar.ConsumerMessage)              { s.note("BeforeConsume", m.Consumer) }
func (s *witness) OnAcknowledge(c pulsar.Consumer, _ pulsar.MessageID) { s.note("OnAcknowledge", c) }
func (s *witness) OnNegativeAcksSend(c pulsar.Consumer, _ []pulsar.MessageID) {
	s.note("OnNegativeAcksSend", c)
}
func (s *witness) OnConsumerClose(c pulsar.Consumer, _ error)          { s.note("OnConsumerClose", c) }
func (s *witness) BecameActive(c pulsar.Consumer, _ string, _ int32)   { s.note("BecameActive", c) }
func (s *witness) BecameInactive(c pulsar.Consumer, _ string, _ int32) { s.note("BecameInactive", c) }

// A plain interceptor is not told of the end.
type plain struct{}

func (plain) BeforeConsume(pulsar.ConsumerMessage)                   {}
func (plain) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (plain) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// TestCallbacksNameTheConsumer: what the client calls back is given the Consumer that Subscribe returned.
func TestCallbacksNameTheConsumer(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, fast(0))
	for name, topics := range map[string][]string{"one topic": {w.topic(0)}, "topics": {w.topic(0), w.topic(2)}} {
		var s witness
		w.subscribe(topics[0], "billing")
		c := w.open(pulsar.ConsumerOptions{Topics: topics, Type: pulsar.Failover, NackRedeliveryDelay: 50 * time.Millisecond,
			Interceptors: pulsar.ConsumerInterceptors{plain{}, &s}, EventListener: &s}, lim)
		w.produce(topics[0], 20, 1)
		for i := range 20 {
			m := receiveOne(t, c)
			if i == 0 {
				c.Nack(m)
			} else {
				require.NoError(t, c.Ack(m))
			}
		}
		require.Eventually(t, func() bool { return s.last("OnNegativeAcksSend") != nil }, 10*time.Second, time.Millisecond)
		require.Eventually(t, func() bool { return s.last("BecameActive") != nil }, 10*time.Second, time.Millisecond)
		c.Close()
		for _, callback := range []string{"BeforeConsume", "OnAcknowledge", "OnNegativeAcksSend", "OnConsumerClose"} {
			assert.Same(t, c, s.last(callback), "%s: %s", name, callback)
		}
	}
}
