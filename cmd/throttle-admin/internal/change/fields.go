package change

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/policy"
)

// FieldHelp describes the fields of a section, for the help of the command that sets them.
func FieldHelp(s policy.Section) string {
	var b strings.Builder
	width := 0
	for _, f := range s.Fields() {
		width = max(width, len(f.Name))
	}
	for _, f := range s.Fields() {
		text := f.Help + " (" + f.Want
		if f.Default != "" {
			text += "; default " + f.Default
		}
		output.Labelled(&b, fmt.Sprintf("  %-*s  ", width, f.Name), text+")")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// CompleteFields completes arguments FIELD=VALUE after the first n arguments.
func CompleteFields(s policy.Section, n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var fields []string
		if len(args) >= n {
			for _, f := range s.Fields() {
				fields = append(fields, f.Name+"=\t"+f.Help)
			}
		}
		return fields, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// ParseFields parses arguments FIELD=VALUE of a section; it returns the fields of FIELD= in unset.
func ParseFields(s policy.Section, args []string) (set policy.Settings, unset []string, err error) {
	set = s.Zero()
	var errs []error
	seen := make(map[string]bool)
	for _, arg := range args {
		field, text, ok := strings.Cut(arg, "=")
		known := slices.ContainsFunc(s.Fields(), func(f policy.Field) bool {
			return f.Name == field
		})
		switch {
		case !ok:
			errs = append(errs, cli.ArgError(field, "",
				"no value: want FIELD=VALUE, or FIELD= to unset it"))
		case seen[field]:
			errs = append(errs, cli.ArgError(field, text, "set twice: want each field once"))
		case text == "" && known:
			unset = append(unset, field)
		default:
			one, err := s.ParseField(field, text)
			set = policy.Overlay(set, one)
			errs = append(errs, err)
		}
		seen[field] = true
	}
	return set, unset, errors.Join(errs...)
}
