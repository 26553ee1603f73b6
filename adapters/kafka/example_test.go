package kafkathrottle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Reader returns ten messages at 20 per second.
func ExampleNewReader() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	ctx := context.Background()
	w := &kafka.Writer{Addr: kafka.TCP(cluster.ListenAddrs()...), Topic: "orders",
		RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond}
	_ = w.WriteMessages(ctx, make([]kafka.Message, 10)...)
	_ = w.Close()

	// without Throttle, a backlog of ten messages would not be throttled
	limit := policy.Policy{MessageRate: policy.PerSecond(20), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	// a program would call throttle.FromEnv(ctx)
	lim, _ := dispatch.Open(ctx, dispatch.Config{Policies: dispatch.Fixed(limit)})
	r, _ := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: cluster.ListenAddrs(), Topic: "orders", GroupID: "billing",
		MaxWait: 100 * time.Millisecond,
	}, lim)

	var start time.Time
	for i := range 10 {
		m, _ := r.FetchMessage(ctx) // returns when there is a permit for m
		if i == 0 {
			start = time.Now()
		}
		_ = r.CommitMessages(ctx, m)
	}
	fmt.Println("read ahead at most:", r.Reader.Config().QueueCapacity)
	// without a limit, a few milliseconds
	fmt.Println("nine permits later, about 450 ms:", time.Since(start) > 200*time.Millisecond)
	_ = r.Close()
	_ = lim.Close()
	// Output:
	// read ahead at most: 5
	// nine permits later, about 450 ms: true
}
