package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError rewrites an error of the flag parser: it names the value that is wanted, and reports
// -5 as a negative number where pflag reports an unknown flag 5.
func FlagError(_ *cobra.Command, err error) error {
	_, rest, ok := strings.Cut(err.Error(), "unknown shorthand flag: '")
	if ok && rest[0] >= '0' && rest[0] <= '9' {
		_, value, _ := strings.Cut(rest, "in ")
		return fmt.Errorf("%.200q: is negative: want 0 or more; 0 means not throttled", value)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s: has no value: want %s", e.GetFlag().Name, wanted(e.GetFlag()))
	}
	e, ok := errors.AsType[*pflag.InvalidValueError](err)
	switch {
	case !ok, e.GetFlag().Value.Type() == "stringSlice": // pflag names the quote that is missing
		return err
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("--%s %.200q: is out of range: want %s",
			e.GetFlag().Name, e.GetValue(), wanted(e.GetFlag()))
	}
	return fmt.Errorf("--%s %.200q: is invalid: want %s",
		e.GetFlag().Name, e.GetValue(), wanted(e.GetFlag()))
}

// wanted describes the values of a flag.
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
	return "a value after it"
}

// Args accepts exactly the named arguments.
func Args(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < len(names):
			return fmt.Errorf("%s: missing", strings.Join(names[len(got):], " and "))
		case len(got) > len(names):
			return fmt.Errorf("%.200q: unexpected argument", got[len(names)])
		}
		return nil
	}
}

// Subcommands is the RunE of a command that only has subcommands: it lists them in an error.
func Subcommands(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	use := "use " + strings.Join(names, ", ")
	if len(args) == 0 {
		return Usage(fmt.Errorf("%s: missing subcommand: %s", cmd.Name(), use))
	}
	return Usage(fmt.Errorf("%s %.200q: unknown command: %s", cmd.Name(), args[0], use))
}
