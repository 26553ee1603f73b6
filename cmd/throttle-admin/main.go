// Command throttle-admin sets and shows the policies that limit message consumers.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/adopt"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/console"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/demo"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/dev"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/doctor"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/explain"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/files"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/numaflow"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/pulsar"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotas"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/rights"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/simulate"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/size"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/top"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// families are the commands, by package.
var families = []cli.Family{
	policies.Commands, history.Commands, files.Commands, adopt.Commands, console.Commands, rights.Commands, explain.Commands, top.Commands, doctor.Commands,
	quotas.Commands,
	pulsar.Commands, numaflow.Commands, simulate.Commands, size.Commands, demo.Commands, dev.Commands,
}

// run runs the command that args name and returns its exit status.
func run(
	ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer,
) int {
	return cli.Run(ctx, policies.PulsarArgs(args), stdin, stdout, stderr, families...)
}
