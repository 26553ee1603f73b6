// Command throttle-admin sets and shows the policies by which consumers are throttled.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// The exit statuses.
const (
	exitDone = iota
	exitFailed
	exitMisused
	exitOutdated
)

// An app is one call of the command: its streams and its global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	store, permits, cluster, output string

	storeOptions, permitsOptions urlOptions
}

// run runs the command and returns its exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := newRoot(a)
	started := false // before that, an error is one of the command line
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		started = true
		return a.checkFlags()
	}
	root.SetArgs(asPublished(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if !started {
		err = misuse(err)
	}
	var text strings.Builder
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(&text, "throttle-admin: "+strings.TrimSuffix(line, "\n"))
	}
	status := exitFailed
	hint := ""
	if e, ok := errors.AsType[*hintError](err); ok {
		hint = e.hint
	}
	if _, ok := errors.AsType[*misuseError](err); ok {
		status, hint = exitMisused, cmp.Or(hint, cmd.CommandPath()+" --help")
	} else if _, ok := errors.AsType[*configstore.ConflictError](err); ok {
		status = exitOutdated
	}
	if hint != "" {
		fmt.Fprintln(&text, "hint: "+hint)
	}
	_, _ = io.WriteString(stderr, text.String()) // there is nowhere else to say it
	return status
}

// A misuseError is a fault of the command line.
type misuseError struct{ error }

func (e *misuseError) Unwrap() error { return e.error }

// misuse makes a fault of the command line of an error; nil stays nil.
func misuse(err error) error {
	if err == nil {
		return nil
	}
	return &misuseError{err}
}

// A hintError says what to do next.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "throttle-admin",
		Short: "Set and show the policies by which consumers are throttled",
		Long: `Set and show the policies by which consumers are throttled.

A SCOPE is cluster, tenant:NAME, tag:NAME, tenant/namespace, tenant/cluster/namespace (that namespace in one cluster),
'pattern:REGEX' on the URL of a topic, or that URL: kafka://tenant/namespace/name,
persistent://... or numaflow://.... The most specific scope that sets a field wins, field by field.

Exit status: 0 done, 1 failed, 2 misused, 3 refused as out of date.`,
		Example: `  export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
  throttle-admin set-msg-rate public/default 1000
  throttle-admin explain kafka://public/default/orders`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.store, "policies", os.Getenv(throttle.EnvPolicies), "where policies are kept: etcd://host:port/prefix, file:policies.yaml ($"+throttle.EnvPolicies+")")
	flags.StringVar(&a.permits, "permits", os.Getenv(throttle.EnvPermits), "where permits are allocated: redis://host:port, rediss://, redis+cluster:// ($"+throttle.EnvPermits+")")
	flags.StringVar(&a.cluster, "cluster", cmp.Or(os.Getenv(throttle.EnvCluster), "standalone"), "whose permits and namespace overrides ($"+throttle.EnvCluster+")")
	flags.StringVarP(&a.output, "output", "o", "table", "table, json or yaml")
	complete := cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)
	if err := root.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // the flag is the one above
	}
	for _, name := range []string{"policies", "permits"} { // so that --help shows no password of the environment
		flags.Lookup(name).DefValue = ""
	}
	a.storeOptions.flags(flags, "policies")
	a.permitsOptions.flags(flags, "permits")
	root.AddCommand(
		newSetMsgRateCommand(a), newSetCommand(a), newPauseCommand(a), newResumeCommand(a), newRemoveCommand(a),
		newGetCommand(a), newListCommand(a), newExplainCommand(a),
		newApplyCommand(a), newDiffCommand(a), newExportCommand(a), newValidateCommand(a),
		newNamespacesCommand(a), newBrokersCommand(a), newPulsarCommand(a), newNumaflowCommand(a),
		newQuotaCommand(a), newRatekeeperCommand(a),
		newSimulateCommand(a), newDemoCommand(a), newDevCommand(a),
	)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Example = "  source <(throttle-admin completion bash)"
		}
	}
	return root
}

// flagError says in our words what is wrong with a flag's value, and of -5 that it is negative, rather than that 5 is no flag.
func flagError(_ *cobra.Command, err error) error {
	if _, rest, ok := strings.Cut(err.Error(), "unknown shorthand flag: '"); ok && rest[0] >= '0' && rest[0] <= '9' {
		_, value, _ := strings.Cut(rest, "in ")
		return fmt.Errorf("%.200q: is negative: write 0 for not throttled", value)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s: has no value: write %s", e.GetFlag().Name, wanted(e.GetFlag()))
	}
	e, ok := errors.AsType[*pflag.InvalidValueError](err)
	switch {
	case !ok, e.GetFlag().Value.Type() == "stringSlice": // its own words name the quote that is missing
		return err
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("--%s %.200q: is out of range: write %s", e.GetFlag().Name, e.GetValue(), wanted(e.GetFlag()))
	}
	return fmt.Errorf("--%s %.200q: makes no sense: write %s", e.GetFlag().Name, e.GetValue(), wanted(e.GetFlag()))
}

// wanted says what to write for a flag.
func wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "float64":
		return "a number, such as 3 or 0.5"
	case "int", "int64":
		return "a whole number, such as 10"
	case "duration":
		return "a duration, such as 90s or 10m"
	case "bool":
		return "true or false"
	}
	return "one after it"
}

var outputs = []string{"table", "json", "yaml"}

// checkFlags returns what is wrong with the global flags.
func (a *app) checkFlags() error {
	var errs []error
	if err := policy.NamespaceScope("any", a.cluster, "any").Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	if !slices.Contains(outputs, a.output) {
		errs = append(errs, fmt.Errorf("output %.200q: is unknown: use %s", a.output, strings.Join(outputs, ", ")))
	}
	return misuse(errors.Join(errs...))
}
