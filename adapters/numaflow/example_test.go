package numaflowthrottle_test

import (
	"context"
	"fmt"

	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/sinker"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

func ExampleMap() {
	ctx := context.Background()
	lim, err := dispatch.Open(ctx,
		dispatch.Config{Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)})})
	if err != nil {
		panic(err)
	}
	defer func() { _ = lim.Close() }() // it gives back what is allocated
	double := func(_ context.Context, _ []string, d mapper.Datum) mapper.Messages {
		return mapper.MessagesBuilder().Append(mapper.NewMessage(append(d.Value(), d.Value()...)))
	}
	m, err := numaflowthrottle.Map(mapper.MapperFunc(double), lim,
		numaflowthrottle.WithTopic("numaflow://prod/fraud/score"))
	if err != nil {
		panic(err)
	}
	// err = mapper.NewServer(m).Start(ctx) serves the data plane; this is one datum of it
	for _, message := range m.Map(ctx, nil, mapDatum{datum{value: []byte("ab")}}) {
		fmt.Println(string(message.Value()))
	}
	// Output: abab
}

func ExampleSink() {
	ctx := context.Background()
	lim, err := dispatch.Open(ctx,
		dispatch.Config{Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(100)})})
	if err != nil {
		panic(err)
	}
	defer func() { _ = lim.Close() }() // it gives back what is allocated
	store := func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
		for d := range in { // a slice of the batch, for which there are permits
			responses = append(responses, sinker.ResponseOK(d.ID()))
		}
		return responses
	}
	s, err := numaflowthrottle.Sink(sinker.SinkerFunc(store), lim,
		numaflowthrottle.WithTopic("numaflow://prod/fraud/store"))
	if err != nil {
		panic(err)
	}
	fmt.Println(len(s.Sink(ctx, batch(0, 10))), "answered")
	// Output: 10 answered
}
