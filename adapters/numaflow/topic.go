package numaflowthrottle

import (
	"cmp"
	"fmt"
	"os"

	"github.com/dispatchthrottle/throttle/policy"
)

// The environment that Numaflow sets.
const (
	envNamespace  = "NUMAFLOW_NAMESPACE"
	envPipeline   = "NUMAFLOW_PIPELINE_NAME"
	envVertex     = "NUMAFLOW_VERTEX_NAME"
	envMonoVertex = "NUMAFLOW_MONO_VERTEX_NAME"
)

// Topic returns the name of the vertex that this process is a part of, by Numaflow's environment.
// The error names the variables that are not set or are invalid.
func Topic() (policy.Topic, error) {
	mono := os.Getenv(envMonoVertex)
	t := policy.Topic{
		Scheme: policy.Numaflow, Tenant: os.Getenv(envNamespace),
		Namespace: cmp.Or(os.Getenv(envPipeline), mono), Name: cmp.Or(os.Getenv(envVertex), mono),
	}
	if err := t.Validate(); err != nil {
		return policy.Topic{}, fmt.Errorf("numaflowthrottle: no topic in %s, %s and %s, or %s: %w;"+
			" outside of Numaflow, use WithTopic",
			envNamespace, envPipeline, envVertex, envMonoVertex, err)
	}
	return t, nil
}
