package pulsarthrottle_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
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

// returnsSoon fails unless f returns. Its bound is far above the client's operation timeout.
func returnsSoon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(throttletest.Patience):
		require.Fail(t, what+" hangs")
	}
}

// requireClosed requires the error that ends a loop over the client's Receive.
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

// Options that Pulsar refuses are refused with the client's own error, and names that only
// policies refuse with a *policy.FieldError.
func TestRefused(t *testing.T) {
	w := newBrokerClient(t)
	lim := throttletest.Open(t, throttletest.PerSecond(10))
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
	_, err := pulsarthrottle.Subscribe(w.client,
		pulsar.ConsumerOptions{Topic: good, SubscriptionName: "a\tb"}, lim.Limiter)
	require.ErrorAs(t, err, &fault)
	_, err = pulsarthrottle.CreateReader(w.client,
		pulsar.ReaderOptions{Topic: good, StartMessageID: pulsar.EarliestMessageID()}, lim.Limiter,
		pulsarthrottle.WithSubscription("a\tb"))
	require.ErrorAs(t, err, &fault)
	assert.Empty(t, lim.Stats().Subscriptions, "nothing stays open")

	require.NoError(t, lim.Close())
	_, err = pulsarthrottle.Subscribe(w.client, pulsar.ConsumerOptions{Topic: good, SubscriptionName: "s"}, lim.Limiter)
	require.ErrorIs(t, err, dispatch.ErrClosed)
}

// A message that cannot be decrypted is returned as it is, if the consumer asks for that.
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
	lim := throttletest.Open(t, throttletest.PerSecond(100))
	c := w.open(pulsar.ConsumerOptions{Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{
		ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
	}}, lim)
	for range 3 {
		m := receiveOne(t, c)
		assert.NotEqual(t, "secret", string(m.Payload()))
		require.NoError(t, c.Ack(m))
	}
}

// A keyring has a public key without its private key.
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
