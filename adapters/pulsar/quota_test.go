package pulsarthrottle_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A tagged message has two pages, and its tag in a property.
type tagged struct {
	message
	tag string
}

func (m tagged) Properties() map[string]string { return map[string]string{"tag": m.tag} }
func (m tagged) Payload() []byte               { return make([]byte, 5000) }

func tagOf(m pulsar.Message) string { return m.Properties()["tag"] }

// supply has any number of messages: a third have a tag with a quota, a third a tag without one.
type supply struct{ n atomic.Int64 }

func (s *supply) next(ctx context.Context) (pulsar.Message, error) {
	return tagged{tag: []string{"", "bulk", "nobody"}[(s.n.Add(1)-1)%3]}, ctx.Err()
}

type suppliedConsumer struct {
	endless
	*supply
}

func (c suppliedConsumer) Receive(ctx context.Context) (pulsar.Message, error) {
	return c.next(ctx)
}

// A zeroQueue consumer has a lock, like the client's: see TestClientTypes.
type zeroQueue struct {
	suppliedConsumer
	*sync.Mutex
}

func (c suppliedConsumer) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) {
	return []pulsar.TopicMessageID{lastID{message{}.ID()}}, nil
}

type lastID struct{ pulsar.MessageID }

func (lastID) Topic() string { return message{}.Topic() }

type suppliedReader struct {
	pulsar.Reader
	*supply
}

func (r suppliedReader) Topic() string                                    { return message{}.Topic() }
func (r suppliedReader) Next(ctx context.Context) (pulsar.Message, error) { return r.next(ctx) }
func (r suppliedReader) Close()                                           {}
func (r suppliedReader) GetLastMessageID() (id pulsar.MessageID, err error) {
	return message{}.ID(), nil
}

// A message is charged to the quota of its tag, or of the Consumer if the tag has none, and so is
// its cost.
func TestQuotaOfTheOwnerAndOfTags(t *testing.T) {
	type next = func(context.Context) (pulsar.Message, error)
	type open = func(*throttletest.Limiter, ...pulsarthrottle.Option) (next, func(), error)
	wrap := func(inner pulsar.Consumer) open {
		return func(lim *throttletest.Limiter, opts ...pulsarthrottle.Option) (next, func(), error) {
			c, err := pulsarthrottle.Wrap(inner, lim.Limiter, opts...)
			if err != nil {
				return nil, nil, err
			}
			return c.Receive, c.Close, nil
		}
	}
	supplied := func() suppliedConsumer { return suppliedConsumer{supply: &supply{}} }
	zero := func() zeroQueue { return zeroQueue{supplied(), &sync.Mutex{}} }
	readers := map[string]open{
		"consumer": func(lim *throttletest.Limiter, opts ...pulsarthrottle.Option) (next, func(), error) {
			return wrap(supplied())(lim, opts...)
		},
		"zero": func(lim *throttletest.Limiter, opts ...pulsarthrottle.Option) (next, func(), error) {
			return wrap(zero())(lim, opts...) // the permit comes first
		},
		"reader": func(lim *throttletest.Limiter, opts ...pulsarthrottle.Option) (next, func(),
			error) {
			r, err := pulsarthrottle.WrapReader(suppliedReader{supply: &supply{}}, lim.Limiter, opts...)
			if err != nil {
				return nil, nil, err
			}
			return r.Next, r.Close, nil
		},
	}
	own := pulsarthrottle.WithOwner(dispatch.WithTag("own"))
	for _, c := range []struct {
		name, reader, backend string
		opts                  []pulsarthrottle.Option
		want                  map[quota.ID]int64 // messages
	}{
		{"the topic's tenant", "consumer", "pulsar", nil, map[quota.ID]int64{"tenant:public": 30}},
		{"a tag", "consumer", "pulsar", []pulsarthrottle.Option{own}, map[quota.ID]int64{"tag:own": 30}},
		{"messages' tags", "consumer", "broker-1",
			[]pulsarthrottle.Option{own, pulsarthrottle.WithTagOf(tagOf), pulsarthrottle.WithBroker("broker-1", "a")},
			map[quota.ID]int64{"tag:own": 20, "tag:bulk": 10}},
		{"messages' tags, no owner", "reader", "pulsar",
			[]pulsarthrottle.Option{pulsarthrottle.WithTagOf(tagOf)},
			map[quota.ID]int64{"tenant:public": 20, "tag:bulk": 10}},
		{"a tenant group, whatever the tags", "reader", "pulsar",
			[]pulsarthrottle.Option{pulsarthrottle.WithOwner(dispatch.WithTenantGroup("big")),
				pulsarthrottle.WithTagOf(tagOf)},
			map[quota.ID]int64{"tenant:big": 30}},
		{"tags do not count where the permit comes first", "zero", "pulsar",
			[]pulsarthrottle.Option{own, pulsarthrottle.WithTagOf(tagOf)}, map[quota.ID]int64{"tag:own": 30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := throttletest.Open(t, policy.Policy{})
				ids := []string{"tenant:public", "tenant:big", "tag:own", "tag:bulk"}
				for _, id := range ids {
					lim.Add(id, throttletest.Quota(1000))
				}
				next, end, err := readers[c.reader](lim, c.opts...)
				require.NoError(t, err)
				for range 30 {
					_, err := next(t.Context())
					require.NoError(t, err)
				}
				for _, id := range ids {
					assert.Equal(t, c.want[quota.ID(id)], lim.Granted(id), id)
				}
				time.Sleep(3 * time.Second) // costs are rates, published once a second
				costs := lim.Costs(c.backend)
				assert.Len(t, costs, len(c.want))
				for id, n := range c.want {
					assert.InEpsilon(t, float64(n)*2*quota.Page, costs[id], 0.01, id)
				}
				end()
			})
		})
	}
}

// A quota of 0 pauses the messages of a tag, and the messages behind them.
func TestTheQuotaOfATagHolds(t *testing.T) {
	t.Parallel()
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("tag:bulk", throttletest.Quota(0))
	c, err := pulsarthrottle.Wrap(suppliedConsumer{supply: &supply{}}, lim.Limiter, pulsarthrottle.WithTagOf(tagOf))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Receive(t.Context())
	require.NoError(t, err, "it has no tag")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = c.Receive(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	lim.Add("tag:bulk", throttletest.Quota(1000))
	assert.Equal(t, "bulk", tagOf(receiveOne(t, c)), "it was kept")
}

func TestFaultsOfOwnersAndBrokers(t *testing.T) {
	t.Parallel()
	lim := throttletest.Open(t, policy.Policy{})
	c, err := pulsarthrottle.Wrap(suppliedConsumer{supply: &supply{}}, lim.Limiter, pulsarthrottle.WithBroker("", "a"))
	assert.ErrorContains(t, err, `pulsarthrottle: dispatch: backend "", zone "a": want names`)
	assert.Nil(t, c)
	_, err = pulsarthrottle.WrapReader(suppliedReader{supply: &supply{}}, lim.Limiter,
		pulsarthrottle.WithOwner(dispatch.WithTag("a b")))
	fault, ok := errors.AsType[*policy.FieldError](err)
	require.True(t, ok, err)
	assert.Equal(t, "a b", fault.Value)
}
