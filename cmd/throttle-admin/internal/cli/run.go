package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
)

// Exit statuses.
const (
	ExitDone     = iota
	ExitFailed   // an error while the command ran
	ExitUsage    // an error in the command line
	ExitOutdated // a change was refused because the policies had changed since
	ExitWarnings // doctor has found warnings
	ExitFaults   // doctor has found faults
)

// An exitError ends a command with a status, after the command has printed its result.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// Exit returns an error that ends a command with a status, without a message.
func Exit(status int) error { return &exitError{status} }

// A Family returns the commands of one package.
type Family func(*App) []*cobra.Command

// Run runs the command that args name and returns its exit status.
func Run(
	ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer,
	families ...Family,
) int {
	a := &App{Stdin: stdin, Stdout: stdout, Stderr: stderr}
	root := NewRoot(a, families...)
	started := false // until the command starts, every error is one in the command line
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		started = true
		return a.checkFlags()
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitDone
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if !started {
		err = Usage(err)
	}
	var text strings.Builder
	for line := range strings.Lines(printableError(err)) {
		fmt.Fprintln(&text, "throttle-admin: "+strings.TrimSuffix(line, "\n"))
	}
	status := ExitFailed
	hint := ""
	if e, ok := errors.AsType[*hintError](err); ok {
		hint = e.hint
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		status, hint = ExitUsage, cmp.Or(hint, cmd.CommandPath()+" --help")
	} else if _, ok := errors.AsType[*configstore.ConflictError](err); ok {
		status = ExitOutdated
	}
	if hint != "" {
		fmt.Fprintln(&text, "hint: "+printable.Line(withoutPasswords(hint)))
	}
	_, _ = io.WriteString(stderr, text.String()) // a failed write cannot be reported anywhere
	return status
}

// Execute runs a command of a family as a command line of its own would, with the stores of a, and
// asks nobody. It returns what the command prints in a format; of a table, also the warnings.
func (a *App) Execute(
	ctx context.Context, family Family, format string, args ...string,
) (printed string, err error) {
	var out strings.Builder
	other := *a
	other.Stdin, other.Stdout, other.Stderr, other.Output = nil, &out, io.Discard, format
	if format == "table" {
		other.Stderr = &out
	}
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(family(&other)...)
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err = root.ExecuteContext(ctx)
	return out.String(), err
}

// NewRoot returns the root command with all others.
func NewRoot(a *App, families ...Family) *cobra.Command {
	root := &cobra.Command{
		Use:   "throttle-admin",
		Short: "Set and show the policies that limit message consumers",
		Long: `Set and show the policies that limit message consumers.

A SCOPE is one of
  cluster                       all topics
  tenant:NAME                   all topics of a tenant together
  tag:NAME                      all subscriptions with a tag together (quotas only)
  tenant/namespace              each topic of a namespace
  tenant/cluster/namespace      the same, in one cluster only
  pattern:REGEX                 each topic whose URL matches
  kafka://tenant/namespace/name a topic; also persistent://... and numaflow://...
The most specific scope that sets a field wins, field by field.

Exit status: 0 done, 1 failed, 2 usage error, 3 refused because the policies have changed;
4 and 5: doctor has found warnings, or faults.`,
		Example: `  export THROTTLE_POLICIES=etcd://127.0.0.1:2379
  export THROTTLE_PERMITS=redis://127.0.0.1:6379
  throttle-admin set-msg-rate public/default 1000
  throttle-admin explain kafka://public/default/orders`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(FlagError)
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.PoliciesURL, "policies", os.Getenv(throttle.EnvPolicies),
		"policy store: etcd://host:port/prefix or file:policies.yaml ($"+throttle.EnvPolicies+")")
	flags.StringVar(&a.PermitsURL, "permits", os.Getenv(throttle.EnvPermits),
		"permit store: redis://host:port, also rediss:, redis+cluster: ($"+throttle.EnvPermits+")")
	flags.StringVar(&a.Cluster, "cluster", cmp.Or(os.Getenv(throttle.EnvCluster), "standalone"),
		"cluster of the permits and of namespace overrides ($"+throttle.EnvCluster+")")
	flags.StringVarP(&a.Output, "output", "o", "table", "format of results: table, json or yaml")
	complete := cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)
	if err := root.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // cannot happen: the flag is defined above
	}
	for _, name := range []string{"policies", "permits"} { // --help must not show passwords
		flags.Lookup(name).DefValue = ""
	}
	a.PoliciesOptions.flags(flags, "policies")
	a.PermitsOptions.flags(flags, "permits")
	root.Version = thisVersion().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newVersionCommand(a))
	for _, family := range families {
		root.AddCommand(family(a)...)
	}
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Example = "  source <(throttle-admin completion bash)"
		}
	}
	return root
}
