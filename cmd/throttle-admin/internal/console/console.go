// Package console holds the command that shows in a browser how limits work.
package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/serve"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newConsoleCommand(a)} }

// Address is where the console is, unless the user says otherwise.
const Address = "127.0.0.1:9400"

func newConsoleCommand(a *cli.App) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Show in a browser which topics are throttled, how hard and why",
		Long: `Serve a page that shows the limits of a cluster at work: which topics are throttled, how
hard and why; the last hour of each; who changed what; quotas; and what doctor finds. The page only
shows: for each change, it has the command to copy.

It is served on this machine only. To look at it from another one:
ssh -L 9400:127.0.0.1:9400 HOST. The plots of the last hour are in memory, at most 64 MiB.`,
		Example: `  throttle-admin console
  throttle-admin console --listen 127.0.0.1:9401 --cluster eu`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), a, listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", Address, "address of the page, on this machine")
	return cmd
}

func run(ctx context.Context, a *cli.App, listen string) error {
	permits, err := a.OpenPermits()
	var errs []error
	if e := CheckAddress(listen); e != nil {
		errs = append(errs, fmt.Errorf("--listen %w", e))
	}
	if permits == nil && err == nil {
		errs = append(errs, errors.New("--permits: missing: want the permit store that the replicas share, "+
			"such as redis://127.0.0.1:6379"))
	}
	check := a.WithStore(ctx, func(context.Context, configstore.Store) error { return nil })
	if err := errors.Join(append(errs, check, err)...); err != nil {
		return cli.Usage(err)
	}
	defer func() { _ = permits.Close() }() // only read from
	at, stop, err := Serve(ctx, a, permits, listen)
	if err != nil {
		return err
	}
	defer stop()
	_, _ = fmt.Fprintf(a.Stdout, "http://%s shows cluster %s; Ctrl-C ends it\n", at, a.Cluster)
	<-ctx.Done()
	return nil
}

// CheckAddress returns an error if an address can be reached from other machines.
func CheckAddress(address string) error {
	if _, _, err := net.SplitHostPort(address); err == nil && !serve.Remote(address) {
		return nil
	}
	return fmt.Errorf("%.100q: want an address of this machine only, such as %s: the page has no password; "+
		"for another machine: ssh -L 9400:%[2]s HOST", address, Address)
}

// Serve serves the console of a cluster at an address until stop is called. Its commands run with
// the stores of a; permits is the permit store of --permits.
func Serve(ctx context.Context, a *cli.App, permits dispatch.PermitStore, listen string) (at net.Addr, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, quotas := cluster.NewReader(permits, a.Cluster, time.Second), newQuotaPoints()
	ping := a.NewPolicyPing()
	reader.AskPolicies(ping.Ask)
	app := *a
	app.Records = (&records{store: permits, cluster: a.Cluster}).read
	h, wait := newServer(ctx, &app, reader, quotas)
	end, at, err := serve.Listen(listen, nil, h)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	var running sync.WaitGroup
	running.Go(func() { reader.Run(ctx) })
	running.Go(func() { quotas.run(ctx, permits, a.Cluster) })
	return at, func() {
		cancel()
		end()
		wait()
		running.Wait()
		ping.Close()
	}, nil
}
