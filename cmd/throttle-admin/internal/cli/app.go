// Package cli holds what all commands of throttle-admin share: the root command and its flags,
// the stores that the flags name, arguments, scopes and errors.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/policy"
)

// An App is one run of the program: its streams and the values of its global flags.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	PoliciesURL, PermitsURL, Cluster, Output string

	PoliciesOptions, PermitsOptions urlOptions

	// Records, if it is set, returns the status records of the cluster's replicas in place of those
	// that the permit store has now: a program that shows many topics reads them once for all.
	Records func(context.Context) ([]dispatch.Stats, error)

	warned []string // texts; see warnOnce
}

var outputs = []string{"table", "json", "yaml"}

// checkFlags validates the global flags.
func (a *App) checkFlags() error {
	var errs []error
	if err := policy.NamespaceScope("any", a.Cluster, "any").Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	if !slices.Contains(outputs, a.Output) {
		errs = append(errs, fmt.Errorf("output %.200q: unknown format: want %s",
			a.Output, strings.Join(outputs, ", ")))
	}
	return Usage(errors.Join(errs...))
}

// Print writes a result to Stdout in the format of --output: v as JSON or YAML, or what table
// writes.
func (a *App) Print(v any, table func(*strings.Builder)) error {
	return output.Print(a.Stdout, a.Output, v, table)
}

// Warn writes a line to Stderr, in which what is not printable is escaped. An error may have
// several lines.
func (a *App) Warn(format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case error:
			args[i] = printableError(arg)
		case string, fmt.Stringer:
			args[i] = printable.Line(withoutPasswords(fmt.Sprint(arg)))
		}
	}
	// A failed write to Stderr cannot be reported anywhere.
	_, _ = fmt.Fprintf(a.Stderr, "throttle-admin: "+format+"\n", args...)
}

// MaxInput is the size of the largest input file of a command without a limit of its own, in
// bytes.
const MaxInput = 64 << 20

// Read reads a file, or the standard input if name is "-", and returns a name for errors. It
// stops after max+1 bytes, so that the caller can tell a file that is too large.
func (a *App) Read(name string, max int64) (shown string, data []byte, err error) {
	in := a.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return name, nil, err
		}
		defer f.Close()
		in = f
	} else {
		name = "stdin"
	}
	data, err = io.ReadAll(io.LimitReader(in, max+1))
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return name, data, err
}
