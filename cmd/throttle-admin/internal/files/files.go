// Package files holds the commands that read and write policy files.
package files

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		newApplyCommand(a), newDiffCommand(a), newExportCommand(a), newValidateCommand(a),
		newSchemaCommand(a),
	}
}

// readFile reads a policy file; "-" is the standard input.
func readFile(a *cli.App, name string) ([]policy.Entry, error) {
	name, data, err := a.Read(name, file.MaxSize)
	if err != nil {
		return nil, err
	}
	return file.Parse(name, data)
}

const fileForm = `FILE is YAML or JSON; - means stdin:

  schema: 2
  policies:
    - scope: public/default
      messageRate: 1000/s
      ramp: {from: 100/s, over: 1m}
    - scope: kafka://public/default/orders
      subscription: billing           # optional
      paused: true                    # or any other field; see throttle-admin set
      expires: 2026-01-02T15:04:05Z   # optional: temporary, until then
  quotas:                             # optional; see throttle-admin quota
    - scope: tag:reports
      total: 1MiB
  quotaSettings: {zones: [a, b]}      # optional; see throttle-admin quota settings`

func fileFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVarP(name, "file", "f", "", "policy file, YAML or JSON; - means stdin")
	cmd.Args = func(cmd *cobra.Command, got []string) error {
		if err := cli.Args()(cmd, got); err != nil {
			return err
		}
		if *name == "" {
			return errors.New("--file: missing: want -f FILE, or -f - for the standard input")
		}
		return nil
	}
}

func newApplyCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var name string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Replace all policies by those of a file",
		Long: "Replace all policies by those of a file, in one step; the others are removed.\n\n" +
			fileForm,
		Example: `  throttle-admin apply -f policies.yaml --dry-run
  throttle-admin export > policies.yaml    # its first line has the revision, such as 17
  throttle-admin apply -f policies.yaml --revision 17`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := readFile(a, name)
			if err != nil {
				return err
			}
			return change.Run(a, cmd, f, change.Plan{
				Review: "diff -f " + name,
				Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
					return s.Replace(entries, time.Now()), nil
				},
			})
		},
	}
	fileFlag(cmd, &name)
	f.Add(cmd)
	return cmd
}

func newDiffCommand(a *cli.App) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "diff -f FILE",
		Short:   "Show what apply would change",
		Long:    "Show what apply would change. Differences are not an error.\n\n" + fileForm,
		Example: "  throttle-admin diff -f policies.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := readFile(a, name)
			if err != nil {
				return err
			}
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			changes := s.Replace(entries, now)
			if err := (configstore.Commit{Changes: changes}).Check(s.Entries); err != nil {
				return err
			}
			r := change.Report{DryRun: true, Replaces: s.Revision, Revision: s.Revision}
			r.Changes = change.Compare(s.Entries, configstore.After(s.Entries, changes, now), now)
			return a.Print(r, func(w *strings.Builder) {
				if len(r.Changes) == 0 {
					fmt.Fprintf(w, "no differences from revision %d\n", s.Revision)
					return
				}
				change.WriteTable(w, r.Changes)
				guard := ""
				if s.Revision > 0 { // 0 is a file that does not exist
					guard = fmt.Sprintf(" --revision %d", s.Revision)
				}
				fmt.Fprintf(w, "to apply: throttle-admin apply -f %s%s\n", name, guard)
			})
		},
	}
	fileFlag(cmd, &name)
	return cmd
}

func newExportCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Write all policies as a file for apply",
		Long: `Write all policies as a file for apply, in YAML or, with -o json, in JSON. The
first line has the revision; with JSON, it is on stderr. Unreadable policies are left out, with a
warning.`,
		Example: `  throttle-admin export > policies.yaml
  throttle-admin --policies file:policies.yaml export |
    throttle-admin --policies etcd://127.0.0.1:2379 apply -f -`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			for _, e := range s.Entries {
				if e.Err != nil {
					a.Warn("left out, unreadable: %v", e.Err)
				}
			}
			format, head := file.Format, fmt.Sprintf("# revision %d\n", s.Revision)
			if a.Output == "json" {
				format, head = file.FormatJSON, ""
				a.Warn("revision %d", s.Revision)
			}
			data, err := format(s.Entries)
			text := string(data)
			if err == nil && printable.Text(text) != text { // JSON has escapes, and is YAML
				data, err = file.FormatJSON(s.Entries)
				text = printable.JSON(string(data))
			}
			if err != nil {
				return fmt.Errorf("export: %w", err)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s%s\n", head, strings.TrimSuffix(text, "\n"))
			return err
		},
	}
}

func newValidateCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a policy file",
		Long: "Check a policy file, and report all errors with line and field. " +
			"No store is needed.\n\n" + fileForm,
		Example: `  throttle-admin validate policies.yaml
  throttle-admin export | throttle-admin validate -`,
		Args: cli.Args("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			entries, err := readFile(a, args[0])
			if err != nil {
				return err
			}
			scopes := make(map[policy.Scope]bool)
			for _, e := range entries {
				scopes[e.Scope] = true
			}
			set, _ := policy.NewSet(entries) // has been validated
			change.WarnUndecided(a, set.Ties(func(policy.Scope) bool { return true }))
			report := struct {
				File   string `json:"file"`
				Scopes int    `json:"scopes"`
			}{args[0], len(scopes)}
			return a.Print(report, func(w *strings.Builder) {
				noun := "scopes"
				if report.Scopes == 1 {
					noun = "scope"
				}
				fmt.Fprintf(w, "%s is valid: %d %s\n", report.File, report.Scopes, noun)
			})
		},
	}
}

func newSchemaCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Long: `Print the JSON Schema of policy files, by which editors check them and complete
fields. The first line of a YAML file names it:

  # yaml-language-server: $schema=policies.schema.json`,
		Example: "  throttle-admin schema > policies.schema.json",
		Args:    cli.Args(),
		RunE: func(*cobra.Command, []string) error {
			data, err := file.Schema()
			if err != nil {
				return fmt.Errorf("schema: %w", err)
			}
			_, err = a.Stdout.Write(data)
			return err
		},
	}
}
