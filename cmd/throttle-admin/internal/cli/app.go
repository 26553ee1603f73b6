// Package cli has what all commands of throttle-admin share: the program and its global flags, the stores that they name, arguments, scopes and errors.
package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/policy"
)

// An App is one call of the command: its streams and its global flags.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	PoliciesURL, PermitsURL, Cluster, Output string

	PoliciesOptions, PermitsOptions URLOptions
}

var outputs = []string{"table", "json", "yaml"}

// checkFlags returns what is wrong with the global flags.
func (a *App) checkFlags() error {
	var errs []error
	if err := policy.NamespaceScope("any", a.Cluster, "any").Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	if !slices.Contains(outputs, a.Output) {
		errs = append(errs, fmt.Errorf("output %.200q: is unknown: use %s", a.Output, strings.Join(outputs, ", ")))
	}
	return Misuse(errors.Join(errs...))
}

// Print writes v as JSON or YAML, or has table write it for people.
func (a *App) Print(v any, table func(*strings.Builder)) error {
	return output.Print(a.Stdout, a.Output, v, table)
}

// Warn tells people something that is no result.
func (a *App) Warn(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Stderr, "throttle-admin: "+format+"\n", args...) // there is nowhere else to say it
}
