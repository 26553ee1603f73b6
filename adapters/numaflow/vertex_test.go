package numaflowthrottle_test

import (
	"context"
	"testing"

	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/policy"
)

func TestTopic(t *testing.T) {
	t.Setenv("NUMAFLOW_NAMESPACE", "prod")
	t.Setenv("NUMAFLOW_PIPELINE_NAME", "fraud")
	t.Setenv("NUMAFLOW_VERTEX_NAME", "score")
	topic, err := numaflowthrottle.Topic()
	require.NoError(t, err)
	assert.Equal(t, "numaflow://prod/fraud/score", topic.String())
}

func TestTopicOfMonoVertex(t *testing.T) {
	t.Setenv("NUMAFLOW_NAMESPACE", "prod")
	t.Setenv("NUMAFLOW_MONO_VERTEX_NAME", "orders")
	topic, err := numaflowthrottle.Topic()
	require.NoError(t, err)
	assert.Equal(t, "numaflow://prod/orders/orders", topic.String())
}

// TestNames: faults of names are reported all at once, with their origins.
func TestNames(t *testing.T) {
	m := mapper.MapperFunc(func(context.Context, []string, mapper.Datum) mapper.Messages {
		return nil
	})
	lim := open(t, policy.Policy{})
	_, err := numaflowthrottle.Map(m, lim)
	for _, what := range []string{"NUMAFLOW_NAMESPACE", "topic.tenant", "topic.namespace", "topic.name", "WithTopic"} {
		assert.ErrorContains(t, err, what)
	}
	_, err = numaflowthrottle.Map(m, lim, numaflowthrottle.WithTopic("kafka:orders"))
	assert.ErrorContains(t, err, `topic "kafka:orders"`)
	_, err = numaflowthrottle.Map(m, lim, numaflowthrottle.WithTopic(topic), numaflowthrottle.WithSubscription("\n"))
	assert.ErrorContains(t, err, "subscription")
}
