package pulsarthrottle_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMovesNeverHang seeks and unloads topics while a Receive without a deadline waits: each
// time, messages come again. With THROTTLE_LONG it does so more often, and keeps all cores busy:
// races between the client's connection, its dispatcher and the broker are rare on an idle
// machine.
func TestMovesNeverHang(t *testing.T) {
	const consumers = 4 // one topic each
	seeks, unloads := 20, 5
	if permitstest.Long() {
		seeks, unloads = 500, 100
		var idle atomic.Bool
		var load sync.WaitGroup
		defer load.Wait()
		defer idle.Store(true)
		for range runtime.GOMAXPROCS(0) {
			load.Go(func() {
				for !idle.Load() {
				}
			})
		}
	}
	w := newBrokerClient(t)
	lim := throttletest.Open(t, throttletest.PerSecond(100))
	var movers sync.WaitGroup
	for range consumers {
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 1000, 1)
		name, err := utils.GetTopicName(topic)
		require.NoError(t, err)
		c := w.open(pulsar.ConsumerOptions{Topic: topic}, lim)
		var received atomic.Int64
		movers.Go(func() {
			for {
				// never acknowledged: all come again after a move
				if _, err := c.Receive(context.Background()); err != nil {
					return
				}
				received.Add(1)
			}
		})
		movers.Go(func() {
			defer c.Close()
			for i := range seeks + unloads {
				unload := i%((seeks+unloads)/unloads) == 0
				var err error
				more := int64(1)
				if unload {
					err = w.admin.Topics().Unload(*name)
					more = 3 // two may have been pushed before
				} else {
					err = c.SeekByTime(time.Now().Add(-time.Hour))
				}
				if err != nil {
					t.Errorf("move %d, unload %v: %v", i, unload, err)
					continue
				}
				moved := received.Load()
				for end := time.Now().Add(time.Minute); received.Load() < moved+more; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Errorf("move %d, unload %v: nothing has come for a minute", i, unload)
						return
					}
				}
			}
		})
	}
	movers.Wait()
}
