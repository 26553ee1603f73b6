package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError says in our words what is wrong with a flag's value, and of -5 that it is negative, rather than that 5 is no flag.
func FlagError(_ *cobra.Command, err error) error {
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

// Args wants just these arguments.
func Args(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < len(names):
			return fmt.Errorf("%s: is missing", strings.Join(names[len(got):], " and "))
		case len(got) > len(names):
			return fmt.Errorf("%.200q: is one argument too many", got[len(names)])
		}
		return nil
	}
}

// OneOf is what a command does that has others and does nothing by itself.
func OneOf(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	use := "use " + strings.Join(names, ", ")
	if len(args) == 0 {
		return Misuse(fmt.Errorf("%s: says nothing to do: %s", cmd.Name(), use))
	}
	return Misuse(fmt.Errorf("%s %.200q: is an unknown command: %s", cmd.Name(), args[0], use))
}
