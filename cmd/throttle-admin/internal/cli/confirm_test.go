package cli_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
)

func TestConfirm(t *testing.T) {
	for answer, yes := range map[string]bool{
		"y\n": true, " YES \n": true, "yes": true, "n\n": false, "\n": false, "": false, "yesterday\n": false,
	} {
		var errs strings.Builder
		a := &cli.App{Stdin: strings.NewReader(answer), Stderr: &errs}
		assert.False(t, a.Interactive())
		err := a.Confirm(t.Context(), "Adopt?")
		assert.Equal(t, yes, err == nil, "%q: %v", answer, err)
		assert.Equal(t, "Adopt? [y/N] ", errs.String())
	}
}

// TestNullDevice: nobody answers at the null device, though it looks like a terminal.
func TestNullDevice(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	assert.False(t, (&cli.App{Stdin: null}).Interactive())
}

// TestConfirmEnds: Ctrl-C ends a question that nobody answers.
func TestConfirmEnds(t *testing.T) {
	silent, typed := io.Pipe()
	defer func() { require.NoError(t, typed.Close()) }()
	ctx, cancel := context.WithCancelCause(t.Context())
	ctrlC := errors.New("interrupted")
	cancel(ctrlC)
	a := &cli.App{Stdin: silent, Stderr: io.Discard}
	require.ErrorIs(t, a.Confirm(ctx, "Adopt?"), ctrlC)
}
