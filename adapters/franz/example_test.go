package franzthrottle_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A consumer is tested under a limit with franz-go's in-process broker and a fixed policy.
func Example() {
	ctx := context.Background()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(100)}),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	client, err := franzthrottle.New(lim, []kgo.Opt{
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"),
		kgo.DefaultProduceTopic("orders"), kgo.AutoCommitMarks(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for i := range 3 {
		client.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint("order ", i)))
	}
	for n := 0; n < 3; {
		fetches := client.PollFetches(ctx)
		for r := range fetches.RecordsAll() {
			fmt.Println(string(r.Value))
			n++
		}
		client.MarkCommitRecords(fetches.Records()...)
	}
	// Output:
	// order 0
	// order 1
	// order 2
}

// A client with plain auto-commit is refused, since it would commit records that wait.
func ExampleNew() {
	lim, err := dispatch.Open(context.Background(), dispatch.Config{Policies: dispatch.Fixed(policy.Policy{})})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	_, err = franzthrottle.New(lim, []kgo.Opt{kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders")})
	fmt.Println(strings.ReplaceAll(err.Error(), ": want", ":\nwant"))
	// Output: franzthrottle: plain auto-commit would commit records that were not returned:
	// want kgo.AutoCommitMarks, with MarkCommitRecords for what is done, or kgo.DisableAutoCommit
}
