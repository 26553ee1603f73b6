// Package numaflow holds the commands that read the limits of Numaflow's pipelines.
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

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newNumaflowCommand(a)}
}

// newNumaflowCommand returns the command for Numaflow.
func newNumaflowCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "numaflow",
		Short:   "Import the rate limits of Numaflow's pipelines",
		Example: "  throttle-admin numaflow import pipeline.yaml",
		RunE:    cli.Subcommands,
	}
	cmd.AddCommand(newNumaflowImportCommand(a))
	return cmd
}

func newNumaflowImportCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var namespace string
	var sharing policy.SharingMode
	var yes bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import the rate limits of Numaflow's pipelines and MonoVertices as policies",
		Long: `Import the rate limits (spec.limits.rateLimit) of Numaflow's pipelines and
MonoVertices as policies, from their YAML. Without --yes, only show what would change. FILE may
have several documents; - means stdin. Settings without an equivalent are listed on stderr.

A pipeline's limit becomes the policy of the namespace NAMESPACE/PIPELINE, which its vertices
inherit. A vertex's limit becomes the policy of the topic numaflow://NAMESPACE/PIPELINE/VERTEX, a
MonoVertex's that of numaflow://NAMESPACE/NAME/NAME. These fields are set:

  max                          messageRate
  min                          ramp.from
  rampUpDuration               ramp.over
  modes scheduled and relaxed  ramp.mode
  ttl                          ramp.ttl and, with --sharing split, sharing.poolTTL

Vertices without a backlog are throttled too, as in Numaflow.`,
		Example: `  throttle-admin numaflow import pipeline.yaml
  kubectl get monovertex,pipeline -A -o yaml | throttle-admin numaflow import - --yes`,
		Args: cli.Args("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, text, err := a.Read(args[0], cli.MaxInput)
			if err != nil {
				return err
			}
			if len(text) > cli.MaxInput {
				return fmt.Errorf("%s: is larger than %d MiB: want smaller parts",
					name, cli.MaxInput>>20)
			}
			if sharing != policy.Fair && sharing != policy.Split {
				return cli.Usage(cli.ArgError("sharing", string(sharing),
					"unknown mode: want fair or split"))
			}
			im := &importer{
				namespace: namespace, sharing: sharing, policies: map[policy.Scope]policy.Policy{},
			}
			if err := im.read(text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return change.Propose(a, cmd, f, yes, change.Import{
				Policies: im.policies, Warnings: im.warnings, Review: "numaflow import " + args[0],
			})
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&yes, "yes", false, "store the changes")
	flags.StringVarP(&namespace, "namespace", "n", "default",
		"Kubernetes namespace of objects that name none")
	flags.StringVar((*string)(&sharing), "sharing", string(policy.Fair),
		"fair: by demand; split: the same for each replica, as in Numaflow")
	return cmd
}

// An importer makes policies of resources.
type importer struct {
	namespace string // of objects that name none
	sharing   policy.SharingMode

	policies map[policy.Scope]policy.Policy
	found    int      // number of pipelines, vertices and MonoVertices
	warnings []string // settings without an equivalent
	faults   []error
}

func (im *importer) warn(format string, args ...any) {
	im.warnings = append(im.warnings, fmt.Sprintf(format, args...))
}

func (im *importer) read(text []byte) error {
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := documents.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return errors.New(yaml.FormatError(err, false, false)) // without the source's secrets
		}
		im.readObject(o)
	}
	switch {
	case len(im.faults) > 0:
	case im.found == 0:
		return errors.New("has no Pipeline, Vertex or MonoVertex: " +
			"want their YAML, as from kubectl get monovertex,pipeline -o yaml")
	case len(im.policies) == 0:
		im.warn("no rate limit found: want spec.limits.rateLimit or " +
			"spec.vertices[].limits.rateLimit")
	}
	return errors.Join(im.faults...)
}

// warnUnknown warns about fields that may be mistyped limits.
func (im *importer) warnUnknown(object string, l limits, misplaced any) {
	if misplaced != nil {
		im.warn("%s: rateLimit was left out: Numaflow reads it under limits only", object)
	}
	for _, name := range l.unknown {
		im.warn("%s: unknown field %q was left out: want rateLimit", object, "limits."+name)
	}
	if l.RateLimit == nil {
		return
	}
	for _, name := range l.RateLimit.unknown {
		im.warn("%s: unknown field %q was left out: the rate is max", object, "rateLimit."+name)
	}
}

func (im *importer) readObject(o object) {
	for _, item := range o.Items {
		im.readObject(item)
	}
	namespace, name := cmp.Or(o.Metadata.Namespace, im.namespace), o.Metadata.Name
	own := o.Spec.Limits.RateLimit
	switch o.Kind {
	case "Pipeline", "Vertex", "MonoVertex":
		im.found++
		object := o.Kind + " " + namespace + "/" + name
		im.warnUnknown(object, o.Spec.Limits, o.Spec.Misplaced)
		for _, v := range o.Spec.Vertices {
			im.warnUnknown(object+", vertex "+v.Name, v.Limits, v.Misplaced)
		}
	}
	switch o.Kind {
	case "MonoVertex":
		if own != nil {
			im.vertex(namespace, name, name, *own, rateLimit{})
		}
	case "Pipeline":
		if own == nil {
			own = &rateLimit{}
		}
		scope, err := policy.ParseScope(namespace + "/" + name)
		if err != nil {
			im.faults = append(im.faults, err)
			return
		}
		im.add(scope, *own, rateLimit{})
		for _, v := range o.Spec.Vertices {
			if v.Limits.RateLimit != nil {
				im.vertex(namespace, name, v.Name, *v.Limits.RateLimit, *own)
			}
		}
	case "Vertex": // has the values of its pipeline
		if own != nil {
			im.vertex(namespace, o.Spec.PipelineName, o.Spec.Name, *own, rateLimit{})
		}
	case "", "List":
	default:
		im.warn("%s %s was left out: want a Pipeline, Vertex or MonoVertex", o.Kind, name)
	}
}

func (im *importer) vertex(namespace, pipeline, name string, r, wider rateLimit) {
	topic := policy.Topic{
		Scheme: policy.Numaflow, Tenant: namespace, Namespace: pipeline, Name: name,
	}
	if err := topic.Validate(); err != nil {
		im.faults = append(im.faults, err)
		return
	}
	im.add(policy.TopicScope(topic), r, wider)
}

// add sets a scope's fields. wider is the rate limit that the scope inherits from. In Numaflow it
// inherits max, min, rampUpDuration and store; here it inherits all fields, so that the others are
// set too.
func (im *importer) add(scope policy.Scope, r, wider rateLimit) {
	if r.Max == nil && !r.ramps() && len(r.Modes) == 0 {
		if r.TTL != "" || r.ResumedRampUp != nil || len(r.Store) > 0 {
			im.warn("%s: rateLimit was left out: it has neither max, min, rampUpDuration nor modes",
				scope)
		}
		return
	}
	var p policy.Policy
	p.MessageRate = im.rate(scope, "max", r.Max)
	p.Ramp.From = im.rate(scope, "min", r.Min)
	p.Ramp.Over = im.duration(
		scope, "rampUpDuration", r.RampUpDuration, policy.MinRamp, policy.MaxRamp)
	if r.ramps() && !wider.ramps() { // Numaflow's defaults
		if r.Min == nil {
			p.Ramp.From = policy.PerSecond(1)
		}
		if r.RampUpDuration == "" {
			p.Ramp.Over = policy.Duration(time.Second)
		}
	}
	ramps := r.ramps() || wider.ramps()
	if ramps || len(r.Modes) > 0 {
		p.Ramp.Mode = policy.RampRelaxed
	}
	for _, mode := range slices.Sorted(maps.Keys(r.Modes)) {
		switch mode {
		case "scheduled":
			p.Ramp.Mode = policy.RampScheduled
		case "relaxed":
		default:
			im.warn("%s: mode %s was replaced by relaxed: ramps here do not depend on use",
				scope, mode)
		}
	}
	ttl := r.TTL
	if ttl == "" && wider.TTL != "" {
		ttl = numaflowTTL
	}
	if ramps {
		p.Ramp.TTL = im.duration(scope, "ttl", ttl, policy.MinRamp, policy.MaxRampTTL)
		if r.ResumedRampUp == nil || !*r.ResumedRampUp {
			im.warn("%s: resumedRampUp false was left out: a ramp continues after a restart "+
				"within ramp.ttl", scope)
		}
	}
	if im.sharing == policy.Split {
		p.Sharing.Mode = policy.Split
		p.Sharing.PoolTTL = im.duration(scope, "ttl", ttl, policy.MinPoolTTL, policy.MaxPoolTTL)
	}
	_, own := r.Store["redisStore"]
	_, shared := wider.Store["redisStore"]
	if own {
		im.warn("%s: redisStore was left out: set THROTTLE_PERMITS=redis://host:port", scope)
	} else if !shared && r.Max != nil {
		im.warn("%s: without a redisStore, Numaflow gives %d/s to each replica; "+
			"here all share it", scope, *r.Max)
	}
	p.CaughtUp.Throttle = new(true)
	im.policies[scope] = p
}

// numaflowTTL is Numaflow's default ttl.
const numaflowTTL = "180s"

// rate converts messages a second; nil means not set.
func (im *importer) rate(scope policy.Scope, field string, n *int64) (rate policy.Rate) {
	switch {
	case n == nil:
	case *n <= 0 || *n > policy.MaxMessageRate:
		err := cli.ArgError(field, fmt.Sprint(*n),
			fmt.Sprintf("out of range: want 1..%d", policy.MaxMessageRate))
		im.faults = append(im.faults, fmt.Errorf("%s: %w", scope, err))
	default:
		rate = policy.PerSecond(*n)
	}
	return rate
}

// duration parses a duration and limits it to low..high; "" means not set.
func (im *importer) duration(
	scope policy.Scope, field, text string, low, high time.Duration,
) policy.Duration {
	if text == "" {
		return 0
	}
	d, err := policy.ParseDuration(text)
	if err != nil {
		err = cli.ArgError(field, text, "invalid duration: want 90s or 3m")
		im.faults = append(im.faults, fmt.Errorf("%s: %w", scope, err))
		return 0
	}
	if bounded := min(max(d, low), high); bounded != d {
		im.warn("%s: %s %s was replaced by %v", scope, field, text, policy.Duration(bounded))
		d = bounded
	}
	return policy.Duration(d)
}
