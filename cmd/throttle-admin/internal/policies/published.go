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

// AsPublished returns the arguments with Pulsar's spellings brought into the order and form that the flag parser
// reads: "namespaces NAMESPACE VERB", and long options with a single dash.
func AsPublished(args []string) []string {
	args = slices.Clone(args)
	at := slices.Index(args, "namespaces")
	if at < 0 {
		return args
	}
	verbs := newNamespacesCommand(&cli.App{}).Commands()
	isVerb := func(name string) bool {
		return slices.ContainsFunc(verbs, func(cmd *cobra.Command) bool { return cmd.Name() == name })
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

var singleDash = map[string]string{"-md": "--msg-dispatch-rate", "-bd": "--byte-dispatch-rate", "-dt": "--dispatch-rate-period"}

// newNamespacesCommand has the commands that Pulsar publishes for namespaces.
func newNamespacesCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "namespaces",
		Short: "Pulsar's commands for namespaces, as published",
		Long: `Pulsar's commands for namespaces, as published. NAMESPACE is tenant/namespace, or tenant/cluster/namespace
for that namespace in one cluster; it may also stand before the verb.`,
		Example: `  throttle-admin namespaces public/default set-msg-rate 500
  throttle-admin namespaces set-msg-rate public/standalone/default 500
  throttle-admin namespaces set-dispatch-rate public/default -md 1000 -bd 1048576 -dt 1`,
		RunE: cli.Subcommands,
	}
	verb := func(use, short string, names []string, run func(cmd *cobra.Command, args []string, fault error) error) *cobra.Command {
		c := &cobra.Command{
			Use:     use + " " + strings.Join(names, " "),
			Short:   short,
			Example: "  throttle-admin namespaces " + use + " public/default" + map[string]string{"set-msg-rate": " 500", "set-dispatch-rate": " -md 1000 -bd 1048576"}[use],
			Args:    cli.Args(names...),
			RunE: func(cmd *cobra.Command, args []string) error {
				var fault error
				if scope, err := policy.ParseScope(args[0]); err == nil && scope.Kind != policy.NamespaceKind {
					fault = &policy.FieldError{Field: "namespace", Value: args[0], Reason: "is no namespace: write tenant/namespace or tenant/cluster/namespace"}
				}
				return run(cmd, args, fault)
			},
		}
		cmd.AddCommand(c)
		return c
	}
	changing := func(c *cobra.Command) *change.SetFlags {
		var f change.SetFlags
		f.Flags.Add(c)
		return &f
	}

	var msg, dispatching, noMsg, noDispatch *change.SetFlags
	msg = changing(verb("set-msg-rate", "Set the message rate of each topic of a namespace", []string{"NAMESPACE", "RATE"}, func(cmd *cobra.Command, args []string, fault error) error {
		rate, err := policy.ParseRate(args[1])
		return set(a, cmd, *msg, args[0], policy.Policy{MessageRate: rate}, nil, fault, err)
	}))
	noMsg = changing(verb("remove-msg-rate", "Have a namespace inherit its message rate", []string{"NAMESPACE"}, func(cmd *cobra.Command, args []string, fault error) error {
		return set(a, cmd, *noMsg, args[0], policy.Policy{}, []string{"messageRate"}, fault)
	}))
	verb("get-msg-rate", "Show the message rate that a namespace sets", []string{"NAMESPACE"}, func(cmd *cobra.Command, args []string, fault error) error {
		return get(a, cmd, args[0], fault, "messageRate")
	})

	var rates dispatchRates
	setRates := verb("set-dispatch-rate", "Set the message and byte rates of each topic of a namespace", []string{"NAMESPACE"}, func(cmd *cobra.Command, args []string, fault error) error {
		p, unset, err := rates.policy()
		return set(a, cmd, *dispatching, args[0], p, unset, fault, err)
	})
	dispatching = changing(setRates)
	setRates.Flags().StringVar(&rates.messages, "msg-dispatch-rate", "-1", "messages a period, also -md; -1 = not set here")
	setRates.Flags().StringVar(&rates.bytes, "byte-dispatch-rate", "-1", "bytes a period, also -bd; -1 = not set here")
	setRates.Flags().StringVar(&rates.period, "dispatch-rate-period", "1", "the period in seconds, also -dt")
	noDispatch = changing(verb("remove-dispatch-rate", "Have a namespace inherit its message and byte rates", []string{"NAMESPACE"}, func(cmd *cobra.Command, args []string, fault error) error {
		return set(a, cmd, *noDispatch, args[0], policy.Policy{}, []string{"messageRate", "byteRate"}, fault)
	}))
	verb("get-dispatch-rate", "Show the message and byte rates that a namespace sets", []string{"NAMESPACE"}, func(cmd *cobra.Command, args []string, fault error) error {
		return get(a, cmd, args[0], fault, "messageRate", "byteRate")
	})
	return cmd
}

// dispatchRates are the options of set-dispatch-rate, which sets both rates at once.
type dispatchRates struct{ messages, bytes, period string }

func (r dispatchRates) policy() (p policy.Policy, unset []string, err error) {
	var errs []error
	period, err := strconv.ParseInt(r.period, 10, 64)
	if err != nil || period < 1 || period > int64(policy.MaxPeriod/time.Second) {
		errs = append(errs, &policy.FieldError{Field: "dispatch-rate-period", Value: r.period,
			Reason: fmt.Sprintf("is no whole number of seconds within 1..%d", policy.MaxPeriod/time.Second)})
		period = 1
	}
	one := func(option, field, text string, parse func(string) (policy.Rate, error)) (rate policy.Rate) {
		if text == "-1" {
			unset = append(unset, field)
			return policy.Rate{}
		}
		err := error(&policy.FieldError{Value: text, Reason: "has a period: write it as -dt"})
		if !strings.Contains(text, "/") {
			rate, err = parse(fmt.Sprintf("%s/%ds", text, period))
		}
		if fault, ok := errors.AsType[*policy.FieldError](err); ok {
			fault.Field, fault.Value = option, text
		}
		errs = append(errs, err)
		return rate
	}
	p.MessageRate = one("msg-dispatch-rate", "messageRate", r.messages, policy.ParseRate)
	p.ByteRate = one("byte-dispatch-rate", "byteRate", r.bytes, policy.ParseByteRate)
	if len(unset) == 2 {
		errs = append(errs, errors.New("msg-dispatch-rate and byte-dispatch-rate: neither is set: say -md, -bd or both, or use remove-dispatch-rate"))
	}
	return p, unset, errors.Join(errs...)
}

// brokerConfigs are the fields of the cluster's default by Pulsar's names, the one of PR 634 and the present ones.
var brokerConfigs = map[string]string{
	"messageDispatchRatePerTopic":          "messageRate",
	"dispatchThrottlingRatePerTopicInMsg":  "messageRate",
	"dispatchThrottlingRatePerTopicInByte": "byteRate",
}

// newBrokersCommand has the commands that Pulsar publishes for the cluster's default.
func newBrokersCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brokers",
		Short: "Pulsar's commands for the cluster's default, as published",
		Example: `  throttle-admin brokers update-dynamic-config --config messageDispatchRatePerTopic --value 1000
  throttle-admin brokers delete-dynamic-config --config messageDispatchRatePerTopic`,
		RunE: cli.Subcommands,
	}
	names := slices.Sorted(maps.Keys(brokerConfigs))
	field := func(config string) (string, error) {
		name, ok := brokerConfigs[config]
		if !ok {
			return "", &policy.FieldError{Field: "config", Value: config, Reason: "is unknown: use " + strings.Join(names, ", ")}
		}
		return name, nil
	}
	verb := func(use, short, example string, run func(cmd *cobra.Command, config string, f change.SetFlags) error) *cobra.Command {
		var f change.SetFlags
		var config string
		c := &cobra.Command{
			Use:     use,
			Short:   short,
			Example: "  throttle-admin brokers " + use + " --config messageDispatchRatePerTopic" + example,
			Args:    cli.Args(),
			RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd, config, f) },
		}
		f.Flags.Add(c)
		c.Flags().StringVar(&config, "config", "", strings.Join(names, ", "))
		cmd.AddCommand(c)
		return c
	}
	var text string
	update := verb("update-dynamic-config", "Set a default for every topic of the cluster; 0 disables it", " --value 1000", func(cmd *cobra.Command, config string, f change.SetFlags) error {
		name, nameErr := field(config)
		parseName := cmp.Or(name, "messageRate")
		p, err := policy.ParseField(parseName, text)
		if text == "" {
			err = &policy.FieldError{Field: "value", Reason: "is missing: write --value 1000, or 0 to disable it"}
		}
		return set(a, cmd, f, "cluster", p, nil, nameErr, err)
	})
	update.Flags().StringVar(&text, "value", "", "messages or bytes a second; 0 = not throttled")
	verb("delete-dynamic-config", "Remove a default for every topic of the cluster", "", func(cmd *cobra.Command, config string, f change.SetFlags) error {
		name, err := field(config)
		return set(a, cmd, f, "cluster", policy.Policy{}, []string{name}, err)
	})
	return cmd
}
