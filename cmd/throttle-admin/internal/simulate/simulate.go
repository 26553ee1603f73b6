// Package simulate holds the commands that simulate limits on synthetic traffic, in virtual time.
package simulate

import (
	"errors"
	"fmt"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/google/renameio/v2/maybe"
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newSimulateCommand(a)}
}

func newSimulateCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "simulate",
		Short:   "Simulate limits on synthetic traffic, in virtual time",
		Example: "  throttle-admin simulate busy steady",
		RunE:    cli.Subcommands,
	}
	cmd.AddCommand(
		newSimulateBusyCommand(a), newSimulateQuotaCommand(a), newSimulateScheduleCommand(a),
	)
	return cmd
}

// readScenario reads a scenario's file and returns a name for errors.
func readScenario(a *cli.App, file string, scenario any) (name string, err error) {
	name, text, err := a.Read(file, cli.MaxInput)
	if err != nil {
		return name, err
	}
	if len(text) > cli.MaxInput {
		return name, fmt.Errorf("%s: is larger than %d MiB", name, cli.MaxInput>>20)
	}
	if err := yaml.UnmarshalWithOptions(text, scenario, yaml.Strict()); err != nil {
		return name, errors.New(name + ": " + yaml.FormatError(err, false, true))
	}
	return name, nil
}

// writePlot writes a picture to the file name, unless it is "".
func writePlot(name string, draw func() []byte) error {
	if name == "" {
		return nil
	}
	write := maybe.WriteFile // replaces the file in one step, except on Windows
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		write = os.WriteFile // do not replace a link or a device, such as /dev/stdout
	}
	if err := write(name, draw(), 0o644); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}
