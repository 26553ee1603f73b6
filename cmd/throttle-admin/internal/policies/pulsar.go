package policies

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

// PulsarArgs rewrites arguments in Pulsar's published forms into those that the flag parser
// reads: "namespaces NAMESPACE VERB" into "namespaces VERB NAMESPACE", and -md into
// --msg-dispatch-rate.
func PulsarArgs(args []string) []string {
	args = slices.Clone(args)
	at := slices.Index(args, "namespaces")
	if at < 0 {
		return args
	}
	verbs := newNamespacesCommand(&cli.App{}).Commands()
	isVerb := func(name string) bool {
		return slices.ContainsFunc(verbs, func(c *cobra.Command) bool { return c.Name() == name })
	}
	if rest := args[at+1:]; len(rest) > 1 && isVerb(rest[1]) && !isVerb(rest[0]) {
		rest[0], rest[1] = rest[1], rest[0]
	}
	for i := at; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		long, ok := singleDash[name]
		switch {
		case ok && hasValue:
			args[i] = long + "=" + value
		case ok:
			args[i] = long
		}
	}
	return args
}

// singleDash has Pulsar's short names of options, which have more than one letter.
var singleDash = map[string]string{
	"-md": "--msg-dispatch-rate", "-bd": "--byte-dispatch-rate", "-dt": "--dispatch-rate-period",
}

// newNamespacesCommand returns Pulsar's commands for namespaces.
func newNamespacesCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "namespaces",
		Short: "Pulsar's commands for namespaces",
		Long: `Pulsar's commands for namespaces, as Pulsar publishes them. NAMESPACE is
tenant/namespace, or tenant/cluster/namespace for the namespace in one cluster; it may also stand
before the verb.`,
		Example: `  throttle-admin namespaces public/default set-msg-rate 500
  throttle-admin namespaces set-msg-rate public/standalone/default 500
  throttle-admin namespaces set-dispatch-rate public/default -md 1000 -bd 1048576 -dt 1`,
		RunE: cli.Subcommands,
	}
	const messages, both = "message rate", "message and byte rates"
	cmd.AddCommand(
		newNamespaceSetMsgRate(a),
		newNamespaceRemove(a, "remove-msg-rate", messages, "messageRate"),
		newNamespaceGet(a, "get-msg-rate", messages, "messageRate"),
		newNamespaceSetDispatchRate(a),
		newNamespaceRemove(a, "remove-dispatch-rate", both, "messageRate", "byteRate"),
		newNamespaceGet(a, "get-dispatch-rate", both, "messageRate", "byteRate"),
	)
	return cmd
}

// checkNamespace returns an error if text is a scope of another kind; set and get parse it.
func checkNamespace(text string) error {
	scope, err := policy.ParseScope(text)
	if err != nil || scope.Kind == policy.NamespaceKind {
		return nil
	}
	return cli.ArgError("namespace", text,
		"invalid namespace: want tenant/namespace or tenant/cluster/namespace")
}

func newNamespaceSetMsgRate(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:     "set-msg-rate NAMESPACE RATE",
		Short:   "Set the message rate of each topic of a namespace",
		Example: "  throttle-admin namespaces set-msg-rate public/default 500",
		Args:    cli.Args("NAMESPACE", "RATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rate, err := policy.ParseRate(args[1])
			p := policy.Policy{MessageRate: rate}
			return set(a, cmd, f, args[0], p, nil, checkNamespace(args[0]), err)
		},
	}
	f.Flags.Add(cmd)
	return cmd
}

func newNamespaceRemove(a *cli.App, use, what string, fields ...string) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:     use + " NAMESPACE",
		Short:   "Remove the " + what + " of a namespace, which then inherits",
		Example: "  throttle-admin namespaces " + use + " public/default",
		Args:    cli.Args("NAMESPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return set(a, cmd, f, args[0], policy.Policy{}, fields, checkNamespace(args[0]))
		},
	}
	f.Flags.Add(cmd)
	return cmd
}

func newNamespaceGet(a *cli.App, use, what string, fields ...string) *cobra.Command {
	return &cobra.Command{
		Use:     use + " NAMESPACE",
		Short:   "Show the " + what + " that a namespace sets",
		Example: "  throttle-admin namespaces " + use + " public/default",
		Args:    cli.Args("NAMESPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return get(a, cmd, args[0], checkNamespace(args[0]), fields...)
		},
	}
}

func newNamespaceSetDispatchRate(a *cli.App) *cobra.Command {
	var f change.SetFlags
	var rates dispatchRates
	cmd := &cobra.Command{
		Use:     "set-dispatch-rate NAMESPACE",
		Short:   "Set the message and byte rates of each topic of a namespace",
		Example: "  throttle-admin namespaces set-dispatch-rate public/default -md 1000 -bd 65536",
		Args:    cli.Args("NAMESPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, unset, err := rates.policy()
			return set(a, cmd, f, args[0], p, unset, checkNamespace(args[0]), err)
		},
	}
	f.Flags.Add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&rates.messages, "msg-dispatch-rate", "-1", "messages a period, -md; -1: unset")
	flags.StringVar(&rates.bytes, "byte-dispatch-rate", "-1", "bytes a period, -bd; -1: unset")
	flags.StringVar(&rates.period, "dispatch-rate-period", "1", "period in seconds, -dt")
	return cmd
}

// dispatchRates are the options of set-dispatch-rate, which sets both rates.
type dispatchRates struct{ messages, bytes, period string }

// policy returns the rates that are set, and the fields of those that are -1.
func (r dispatchRates) policy() (p policy.Policy, unset []string, err error) {
	var errs []error
	longest := int64(policy.MaxPeriod / time.Second)
	period, err := strconv.ParseInt(r.period, 10, 64)
	if err != nil || period < 1 || period > longest {
		errs = append(errs, cli.ArgError("dispatch-rate-period", r.period,
			fmt.Sprintf("invalid period: want seconds, 1..%d", longest)))
		period = 1
	}
	one := func(option, field, text string, parse func(string) (policy.Rate, error)) policy.Rate {
		if text == "-1" {
			unset = append(unset, field)
			return policy.Rate{}
		}
		var rate policy.Rate
		err := cli.ArgError(option, text, "period in the rate: want it in -dt")
		if !strings.Contains(text, "/") {
			rate, err = parse(fmt.Sprintf("%s/%ds", text, period))
		}
		if fault, ok := errors.AsType[*policy.FieldError](err); ok {
			err = cli.ArgError(option, text, fault.Reason)
		}
		errs = append(errs, err)
		return rate
	}
	p.MessageRate = one("msg-dispatch-rate", "messageRate", r.messages, policy.ParseRate)
	p.ByteRate = one("byte-dispatch-rate", "byteRate", r.bytes, policy.ParseByteRate)
	if len(unset) == 2 {
		errs = append(errs, errors.New("msg-dispatch-rate, byte-dispatch-rate: both missing: "+
			"want -md, -bd or both; remove-dispatch-rate removes both rates"))
	}
	return p, unset, errors.Join(errs...)
}

// brokerConfigs maps Pulsar's names of the cluster's defaults to fields: the name of its proposal
// of 2017, and the present ones.
var brokerConfigs = map[string]string{
	"messageDispatchRatePerTopic":          "messageRate",
	"dispatchThrottlingRatePerTopicInMsg":  "messageRate",
	"dispatchThrottlingRatePerTopicInByte": "byteRate",
}

// newBrokersCommand returns Pulsar's commands for the cluster's defaults.
func newBrokersCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brokers",
		Short: "Pulsar's commands for the cluster's defaults",
		Example: `  throttle-admin brokers update-dynamic-config \
    --config messageDispatchRatePerTopic --value 1000
  throttle-admin brokers delete-dynamic-config --config messageDispatchRatePerTopic`,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(newBrokersUpdate(a), newBrokersDelete(a))
	return cmd
}

// A configFlag is the option --config of Pulsar's commands for brokers.
type configFlag struct{ name string }

func (c *configFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.name, "config", "", strings.Join(c.names(), ", "))
}

func (c *configFlag) names() []string { return slices.Sorted(maps.Keys(brokerConfigs)) }

// field returns the policy's field for the configuration.
func (c *configFlag) field() (string, error) {
	field, ok := brokerConfigs[c.name]
	if !ok {
		return "", cli.ArgError("config", c.name,
			"unknown configuration: want "+strings.Join(c.names(), ", "))
	}
	return field, nil
}

func newBrokersUpdate(a *cli.App) *cobra.Command {
	var f change.SetFlags
	var config configFlag
	var text string
	const use = "update-dynamic-config"
	cmd := &cobra.Command{
		Use:   use,
		Short: "Set a default for each topic of the cluster; 0 means not throttled",
		Example: "  throttle-admin brokers " + use +
			" --config messageDispatchRatePerTopic --value 1000",
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			field, fieldErr := config.field()
			p, err := policy.PolicySection.ParseField(cmp.Or(field, "messageRate"), text)
			if text == "" {
				err = cli.ArgError("value", "", "missing: want --value 1000")
			}
			return set(a, cmd, f, "cluster", p.(policy.Policy), nil, fieldErr, err)
		},
	}
	f.Flags.Add(cmd)
	config.add(cmd)
	cmd.Flags().StringVar(&text, "value", "", "messages or bytes a second; 0 = not throttled")
	return cmd
}

func newBrokersDelete(a *cli.App) *cobra.Command {
	var f change.SetFlags
	var config configFlag
	const use = "delete-dynamic-config"
	cmd := &cobra.Command{
		Use:     use,
		Short:   "Remove a default of the cluster",
		Example: "  throttle-admin brokers " + use + " --config messageDispatchRatePerTopic",
		Args:    cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			field, err := config.field()
			return set(a, cmd, f, "cluster", policy.Policy{}, []string{field}, err)
		},
	}
	f.Flags.Add(cmd)
	config.add(cmd)
	return cmd
}
