package numaflow

import (
	"maps"
	"slices"
)

// An object is one of Numaflow's resources, with the fields that concern limits, or a list of
// them.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Name         string // of a Vertex
		PipelineName string `yaml:"pipelineName"`
		Limits       limits
		Misplaced    any `yaml:"rateLimit"`
		Vertices     []struct {
			Name      string
			Limits    limits
			Misplaced any `yaml:"rateLimit"`
		}
	}
	Items []object
}

// limits are the limits of a pipeline or a vertex.
type limits struct {
	RateLimit *rateLimit `yaml:"rateLimit"`
	unknown   []string   // names of unknown fields, which may be mistyped
}

// UnmarshalYAML also keeps the names of unknown fields.
func (l *limits) UnmarshalYAML(decode func(any) error) (err error) {
	type plain limits
	l.unknown, err = decodeKnown(decode, (*plain)(l),
		"rateLimit", "readBatchSize", "readTimeout", "bufferMaxLength", "bufferUsageLimit")
	return err
}

// UnmarshalYAML also keeps the names of unknown fields.
func (r *rateLimit) UnmarshalYAML(decode func(any) error) (err error) {
	type plain rateLimit
	r.unknown, err = decodeKnown(decode, (*plain)(r),
		"max", "min", "rampUpDuration", "modes", "resumedRampUp", "ttl", "store")
	return err
}

// decodeKnown decodes into v and returns the names of the other fields.
func decodeKnown(decode func(any) error, v any, known ...string) ([]string, error) {
	var all map[string]any
	if err := decode(v); err != nil {
		return nil, err
	}
	if err := decode(&all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool {
		return slices.Contains(known, name)
	}), nil
}

// A rateLimit is Numaflow's RateLimit; fields that are not set are inherited.
type rateLimit struct {
	Max, Min       *int64
	RampUpDuration string `yaml:"rampUpDuration"`
	Modes          map[string]any
	ResumedRampUp  *bool `yaml:"resumedRampUp"`
	TTL            string
	Store          map[string]any
	unknown        []string
}

// ramps reports whether the limit has a ramp of its own.
func (r rateLimit) ramps() bool { return r.Min != nil || r.RampUpDuration != "" }
