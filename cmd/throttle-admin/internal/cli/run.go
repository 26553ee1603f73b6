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
)

// The exit statuses.
const (
	ExitDone = iota
	ExitFailed
	ExitMisused
	ExitOutdated
)

// A Family returns the commands of one family for a call.
type Family func(*App) []*cobra.Command

// Run runs one of the commands and returns its exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, families ...Family) int {
	a := &App{Stdin: stdin, Stdout: stdout, Stderr: stderr}
	root := NewRoot(a, families...)
	started := false // before that, an error is one of the command line
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
	if !started {
		err = Misuse(err)
	}
	var text strings.Builder
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(&text, "throttle-admin: "+strings.TrimSuffix(line, "\n"))
	}
	status := ExitFailed
	hint := ""
	if e, ok := errors.AsType[*hintError](err); ok {
		hint = e.hint
	}
	if _, ok := errors.AsType[*misuseError](err); ok {
		status, hint = ExitMisused, cmp.Or(hint, cmd.CommandPath()+" --help")
	} else if _, ok := errors.AsType[*configstore.ConflictError](err); ok {
		status = ExitOutdated
	}
	if hint != "" {
		fmt.Fprintln(&text, "hint: "+hint)
	}
	_, _ = io.WriteString(stderr, text.String()) // there is nowhere else to say it
	return status
}

// NewRoot returns the program with all its commands.
func NewRoot(a *App, families ...Family) *cobra.Command {
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
	root.SetFlagErrorFunc(FlagError)
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.PoliciesURL, "policies", os.Getenv(throttle.EnvPolicies), "where policies are kept: etcd://host:port/prefix, file:policies.yaml ($"+throttle.EnvPolicies+")")
	flags.StringVar(&a.PermitsURL, "permits", os.Getenv(throttle.EnvPermits), "where permits are allocated: redis://host:port, rediss://, redis+cluster:// ($"+throttle.EnvPermits+")")
	flags.StringVar(&a.Cluster, "cluster", cmp.Or(os.Getenv(throttle.EnvCluster), "standalone"), "whose permits and namespace overrides ($"+throttle.EnvCluster+")")
	flags.StringVarP(&a.Output, "output", "o", "table", "table, json or yaml")
	complete := cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)
	if err := root.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // the flag is the one above
	}
	for _, name := range []string{"policies", "permits"} { // so that --help shows no password of the environment
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
