// Package numaflow has the commands that read the limits that Numaflow's pipelines already have.
package numaflow

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newNumaflowCommand(a)}
}

// newNumaflowCommand has what is for Numaflow only.
func newNumaflowCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "numaflow",
		Short:   "Read the limits that Numaflow's pipelines already have",
		Example: "  throttle-admin numaflow import pipeline.yaml",
		RunE:    cli.Subcommands,
	}
	cmd.AddCommand(newNumaflowImportCommand(a))
	return cmd
}

func newNumaflowImportCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var namespace string
	var sharing policy.Sharing
	var yes bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make policies of the rate limits of Numaflow's pipelines and MonoVertices",
		Long: `Make policies of the rate limits (spec.limits.rateLimit) of Numaflow's pipelines and MonoVertices, as their YAML has
them. It shows what would change; with --yes it stores that. FILE may have several documents; - is standard input.

A pipeline's limit becomes that of the namespace NAMESPACE/PIPELINE, which each of its vertices inherits; a vertex's becomes
that of the topic numaflow://NAMESPACE/PIPELINE/VERTEX, a MonoVertex's that of numaflow://NAMESPACE/NAME/NAME. max becomes
messageRate, min rampFrom, rampUpDuration rampOver, the modes scheduled and relaxed ramp, ttl rampTTL and, with --sharing
split, poolTTL. Who has caught up is throttled, too, as Numaflow does. What cannot be carried over is said on stderr.`,
		Example: `  throttle-admin numaflow import pipeline.yaml
  kubectl get monovertex,pipeline -A -o yaml | throttle-admin numaflow import - --yes`,
		Args: cli.Args("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, text, err := a.Read(args[0], cli.MaxInput)
			if err != nil {
				return err
			}
			if len(text) > cli.MaxInput {
				return fmt.Errorf("%s: is larger than %d MiB: import it in parts", name, cli.MaxInput>>20)
			}
			if sharing != policy.Fair && sharing != policy.Split {
				return cli.Usage(&policy.FieldError{Field: "sharing", Value: string(sharing), Reason: "is not allocated or split"})
			}
			im := &numaflowImport{namespace: namespace, sharing: sharing, policies: map[policy.Scope]policy.Policy{}}
			if err := im.read(text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return change.Propose(a, cmd, f, yes, "numaflow import "+args[0], im.policies, im.said)
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&yes, "yes", false, "store the changes")
	flags.StringVarP(&namespace, "namespace", "n", "default", "Kubernetes namespace of what has none in the file")
	flags.StringVar((*string)(&sharing), "sharing", string(policy.Fair), "allocated: who has more to do gets more; split: all replicas the same, as in Numaflow")
	return cmd
}

// A numaflowObject is what of Numaflow's resources has to do with limits. A list is one of them.
type numaflowObject struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Name         string // of a Vertex
		PipelineName string `yaml:"pipelineName"`
		Limits       numaflowLimits
		Misplaced    any `yaml:"rateLimit"`
		Vertices     []struct {
			Name      string
			Limits    numaflowLimits
			Misplaced any `yaml:"rateLimit"`
		}
	}
	Items []numaflowObject
}

type numaflowLimits struct {
	RateLimit *numaflowRate `yaml:"rateLimit"`
	unknown   []string
}

// UnmarshalYAML also keeps the names of fields that Numaflow does not know: one may be a limit whose name is mistyped.
func (l *numaflowLimits) UnmarshalYAML(decode func(any) error) (err error) {
	type plain numaflowLimits
	l.unknown, err = others(decode, (*plain)(l), "rateLimit", "readBatchSize", "readTimeout", "bufferMaxLength", "bufferUsageLimit")
	return err
}

// UnmarshalYAML also keeps the names of fields that Numaflow does not know.
func (r *numaflowRate) UnmarshalYAML(decode func(any) error) (err error) {
	type plain numaflowRate
	r.unknown, err = others(decode, (*plain)(r), "max", "min", "rampUpDuration", "modes", "resumedRampUp", "ttl", "store")
	return err
}

// others decodes into v, and returns the names of the fields that are not known.
func others(decode func(any) error, v any, known ...string) ([]string, error) {
	var all map[string]any
	if err := decode(v); err != nil {
		return nil, err
	}
	if err := decode(&all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return slices.Contains(known, name) }), nil
}

// A numaflowRate is Numaflow's RateLimit; what is not set is inherited.
type numaflowRate struct {
	Max, Min       *int64
	RampUpDuration string `yaml:"rampUpDuration"`
	Modes          map[string]any
	ResumedRampUp  *bool `yaml:"resumedRampUp"`
	TTL            string
	Store          map[string]any
	unknown        []string
}

// A numaflowImport makes policies of resources.
type numaflowImport struct {
	namespace string // of what has none
	sharing   policy.Sharing

	policies map[policy.Scope]policy.Policy
	found    int      // pipelines, vertices and MonoVertices
	said     []string // what cannot be carried over
	faults   []error
}

func (im *numaflowImport) say(format string, args ...any) {
	im.said = append(im.said, fmt.Sprintf(format, args...))
}

func (im *numaflowImport) read(text []byte) error {
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o numaflowObject
		err := documents.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return errors.New(yaml.FormatError(err, false, false)) // its source may have secrets
		}
		im.readObject(o)
	}
	switch {
	case len(im.faults) > 0:
	case im.found == 0:
		return errors.New("holds no Pipeline, Vertex or MonoVertex: write their YAML into it, as kubectl get monovertex,pipeline -o yaml does")
	case len(im.policies) == 0:
		im.say("no rate limit is in it: Numaflow has them at spec.limits.rateLimit and spec.vertices[].limits.rateLimit")
	}
	return errors.Join(im.faults...)
}

// sayUnknown says what is not read, although it may be meant to be a limit.
func (im *numaflowImport) sayUnknown(of string, l numaflowLimits, misplaced any) {
	if misplaced != nil {
		im.say("%s: its rateLimit is not under limits, where Numaflow reads it: not carried over", of)
	}
	for _, name := range l.unknown {
		im.say("%s: limits has an unknown field %q, which is not carried over: a limit is rateLimit", of, name)
	}
	if l.RateLimit == nil {
		return
	}
	for _, name := range l.RateLimit.unknown {
		im.say("%s: rateLimit has an unknown field %q, which is not carried over: the rate is max", of, name)
	}
}

func (im *numaflowImport) readObject(o numaflowObject) {
	for _, item := range o.Items {
		im.readObject(item)
	}
	namespace, name := cmp.Or(o.Metadata.Namespace, im.namespace), o.Metadata.Name
	own := o.Spec.Limits.RateLimit
	switch o.Kind {
	case "Pipeline", "Vertex", "MonoVertex":
		im.found++
		of := o.Kind + " " + namespace + "/" + name
		im.sayUnknown(of, o.Spec.Limits, o.Spec.Misplaced)
		for _, v := range o.Spec.Vertices {
			im.sayUnknown(of+", vertex "+v.Name, v.Limits, v.Misplaced)
		}
	}
	switch o.Kind {
	case "MonoVertex":
		if own != nil {
			im.vertex(namespace, name, name, *own, numaflowRate{})
		}
	case "Pipeline":
		if own == nil {
			own = &numaflowRate{}
		}
		scope, err := policy.ParseScope(namespace + "/" + name)
		if err != nil {
			im.faults = append(im.faults, err)
			return
		}
		im.add(scope, *own, numaflowRate{})
		for _, v := range o.Spec.Vertices {
			if v.Limits.RateLimit != nil {
				im.vertex(namespace, name, v.Name, *v.Limits.RateLimit, *own)
			}
		}
	case "Vertex": // with all that it has of its pipeline
		if own != nil {
			im.vertex(namespace, o.Spec.PipelineName, o.Spec.Name, *own, numaflowRate{})
		}
	case "", "List":
	default:
		im.say("%s %s: is neither a Pipeline, a Vertex nor a MonoVertex", o.Kind, name)
	}
}

func (im *numaflowImport) vertex(namespace, pipeline, name string, r, wider numaflowRate) {
	topic := policy.Topic{Scheme: policy.Numaflow, Tenant: namespace, Namespace: pipeline, Name: name}
	if err := topic.Validate(); err != nil {
		im.faults = append(im.faults, err)
		return
	}
	im.add(policy.TopicScope(topic), r, wider)
}

// add sets a scope's fields. wider is what the scope inherits, field by field: in Numaflow max, min, rampUpDuration and store,
// here all, so that the others are said.
func (im *numaflowImport) add(scope policy.Scope, r, wider numaflowRate) {
	if r.Max == nil && !r.ramps() && len(r.Modes) == 0 {
		if r.TTL != "" || r.ResumedRampUp != nil || len(r.Store) > 0 {
			im.say("%s: its rateLimit has neither max, min, rampUpDuration nor modes, so that there is nothing to carry over", scope)
		}
		return
	}
	var p policy.Policy
	p.MessageRate = im.rate(scope, "max", r.Max)
	p.RampFrom = im.rate(scope, "min", r.Min)
	p.RampOver = im.duration(scope, "rampUpDuration", r.RampUpDuration, policy.MinRamp, policy.MaxRamp)
	if r.ramps() && !wider.ramps() { // what Numaflow takes if nothing is said
		if r.Min == nil {
			p.RampFrom = policy.PerSecond(1)
		}
		if r.RampUpDuration == "" {
			p.RampOver = policy.Duration(time.Second)
		}
	}
	ramps := r.ramps() || wider.ramps()
	if ramps || len(r.Modes) > 0 {
		p.Ramp = policy.RampRelaxed
	}
	for _, mode := range slices.Sorted(maps.Keys(r.Modes)) {
		switch mode {
		case "scheduled":
			p.Ramp = policy.RampScheduled
		case "relaxed":
		default:
			im.say("%s: mode %s cannot be carried over: a ramp here does not go by how much is used; it is relaxed", scope, mode)
		}
	}
	ttl := r.TTL
	if ttl == "" && wider.TTL != "" {
		ttl = numaflowTTL
	}
	if ramps {
		p.RampTTL = im.duration(scope, "ttl", ttl, policy.MinRamp, policy.MaxRampTTL)
		if r.ResumedRampUp == nil || !*r.ResumedRampUp {
			im.say("%s: resumedRampUp false cannot be carried over: a ramp goes on after a restart, unless all were silent for rampTTL", scope)
		}
	}
	if im.sharing == policy.Split {
		p.Sharing, p.PoolTTL = policy.Split, im.duration(scope, "ttl", ttl, policy.MinPoolTTL, policy.MaxPoolTTL)
	}
	_, own := r.Store["redisStore"]
	if _, shared := wider.Store["redisStore"]; own {
		im.say("%s: its redisStore is not a matter of policies: say THROTTLE_PERMITS=redis://host:port", scope)
	} else if !shared && r.Max != nil {
		im.say("%s: without a redisStore, Numaflow lets each replica have %d: here they have it together", scope, *r.Max)
	}
	p.ThrottleCaughtUp = new(true)
	im.policies[scope] = p
}

// numaflowTTL is Numaflow's default.
const numaflowTTL = "180s"

func (r numaflowRate) ramps() bool { return r.Min != nil || r.RampUpDuration != "" }

// rate reads a number of messages a second; nil is not set.
func (im *numaflowImport) rate(scope policy.Scope, field string, n *int64) (rate policy.Rate) {
	switch {
	case n == nil:
	case *n <= 0 || *n > policy.MaxMessageRate:
		im.faults = append(im.faults, fmt.Errorf("%s: %w", scope, &policy.FieldError{
			Field: field, Value: fmt.Sprint(*n), Reason: fmt.Sprintf("is outside 1..%d", policy.MaxMessageRate),
		}))
	default:
		rate = policy.PerSecond(*n)
	}
	return rate
}

// duration reads one, and brings it within bounds; "" is not set.
func (im *numaflowImport) duration(scope policy.Scope, field, text string, least, most time.Duration) policy.Duration {
	if text == "" {
		return 0
	}
	d, err := policy.ParseDuration(text)
	if err != nil {
		im.faults = append(im.faults, fmt.Errorf("%s: %w", scope, &policy.FieldError{Field: field, Value: text, Reason: "is no duration: write 90s or 3m"}))
		return 0
	}
	if bounded := min(max(d, least), most); bounded != d {
		im.say("%s: %s %s cannot be carried over: it is %v", scope, field, text, policy.Duration(bounded))
		d = bounded
	}
	return policy.Duration(d)
}
