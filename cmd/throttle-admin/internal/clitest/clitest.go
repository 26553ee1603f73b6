// Package clitest runs commands in tests.
package clitest

import (
	"bytes"
	"context"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
)

// Run runs a command of some families, and returns its exit status and output.
func Run(
	ctx context.Context, families []cli.Family, args ...string,
) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = cli.Run(ctx, args, strings.NewReader(""), &out, &errs, families...)
	return status, out.String(), errs.String()
}
