package kafkathrottle_test

import (
	"context"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestBehaviours(t *testing.T) {
	adaptertest.Run(t, "kafka-go", func(testing.TB) adaptertest.Broker { return &fake{} })
}

// A fake is an in-process Kafka with Readers.
type fake struct {
	adaptertest.Kafka
}

func (f *fake) Open(t testing.TB, lim *throttletest.Limiter, o adaptertest.Options) adaptertest.Consumer {
	cfg := groupConfig(f.Brokers, o.Topic)
	if o.Alone {
		cfg.GroupID = ""
	}
	var opts []kafkathrottle.Option
	if o.TagOf != nil {
		opts = append(opts, kafkathrottle.WithTagOf(func(m *kafka.Message) string { return o.TagOf(string(m.Value)) }))
	}
	r, err := kafkathrottle.NewReader(cfg, lim.Limiter, opts...)
	require.NoError(t, err)
	return consumer{r}
}

type consumer struct{ *kafkathrottle.Reader }

func (c consumer) Next(ctx context.Context) (adaptertest.Message, error) {
	m, err := c.FetchMessage(ctx)
	if err != nil {
		return adaptertest.Message{}, err
	}
	return adaptertest.Message{Value: string(m.Value), Raw: m}, nil
}

func (c consumer) Settle(ctx context.Context, m adaptertest.Message) error {
	if c.Config().GroupID == "" {
		return nil
	}
	return c.CommitMessages(ctx, m.Raw.(kafka.Message))
}

func (c consumer) Skip(m adaptertest.Message) { c.Reader.Skip(m.Raw.(kafka.Message)) }

func (c consumer) Rewind(context.Context) error { return c.SetOffset(0) }
