package pulsarthrottle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// An endless consumer always has a message. It stands for one of client.Subscribe.
type endless struct{ pulsar.Consumer }

func (endless) Subscription() string                { return "billing" }
func (endless) Chan() <-chan pulsar.ConsumerMessage { return nil }
func (endless) Ack(pulsar.Message) error            { return nil }
func (endless) Close()                              {}

func (endless) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) { return nil, nil }

func (endless) Receive(ctx context.Context) (pulsar.Message, error) {
	return message{}, ctx.Err()
}

const orders = "persistent://public/default/orders"

type message struct{ pulsar.Message }

func (message) Topic() string                 { return orders + "-partition-0" }
func (message) ID() pulsar.MessageID          { return pulsar.NewMessageID(1, 1, 0, 0) }
func (message) Key() string                   { return "" }
func (message) Payload() []byte               { return []byte("an order") }
func (message) Properties() map[string]string { return nil }

// The first of eleven messages comes at once, the others at 20 per second.
func ExampleWrap() {
	lim, err := dispatch.Open(context.Background(),
		dispatch.Config{Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(20)})})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lim.Close() }() // nothing to lose here
	c, err := pulsarthrottle.Wrap(endless{}, lim)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	var first time.Time
	for i := range 11 {
		m, err := c.Receive(context.Background())
		if err == nil {
			err = c.Ack(m)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if i == 0 {
			first = time.Now()
		}
	}
	// without a limit, no time
	fmt.Println("ten permits later, about 500 ms:", time.Since(first) > 250*time.Millisecond)
	// Output: ten permits later, about 500 ms: true
}
