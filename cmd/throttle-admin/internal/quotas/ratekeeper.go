package quotas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/serve"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// ratekeeperFlags are the flags of the command ratekeeper.
type ratekeeperFlags struct {
	name, listen, metrics, tokens string

	tls    serve.TLS
	maxIDs int
}

func newRatekeeperCommand(a *cli.App) *cobra.Command {
	var f ratekeeperFlags
	cmd := &cobra.Command{
		Use:   "ratekeeper",
		Short: "Run a ratekeeper, which computes the rates of throughput quotas",
		Long: `Run a ratekeeper, which computes the rates of throughput quotas, until it is
interrupted. If several ratekeepers run, they elect a leader; when it dies, another one takes over
within 5 s. A program with a Limiter can run one too (throttle.WithRatekeeper). Each decision is
logged to stderr with its inputs.

With --listen, the ratekeeper serves /reports. Backends POST their load and the cost of each id
there, with the header "Authorization: Bearer TOKEN"; see docs/slowing-down.md. --tokens has a line
"BACKEND: TOKEN" for each; a token is good for that backend only. /metrics is served at the same
address or at that of --metrics.

The files of tokens, certificates and keys are read again when they change.`,
		Example: `  throttle-admin ratekeeper
  throttle-admin ratekeeper --metrics 127.0.0.1:9402
  throttle-admin ratekeeper --listen :9402 --tokens FILE --tls-cert FILE --tls-key FILE \
      --metrics 127.0.0.1:9403`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(a); err != nil {
				return cli.Usage(err)
			}
			return runRatekeeper(cmd.Context(), a, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name in the election (default host name and process id)")
	flags.IntVar(&f.maxIDs, "max-ids", 1000,
		"ids without a quota to track of each backend's report, the costliest first")
	flags.StringVar(&f.listen, "listen", "",
		"address to serve /reports at, such as 127.0.0.1:9402 (default none)")
	flags.StringVar(&f.tokens, "tokens", "",
		"file with the tokens for reports: a line \"BACKEND: TOKEN\" for each backend")
	flags.StringVar(&f.metrics, "metrics", "",
		"address to serve /metrics at (default that of --listen)")
	f.tls.Flags(flags)
	return cmd
}

// check validates the flags.
func (f ratekeeperFlags) check(a *cli.App) error {
	var errs []error
	if (f.listen == "") != (f.tokens == "") {
		errs = append(errs, errors.New("--listen, --tokens: one is missing: want both flags"))
	}
	if f.maxIDs < 1 {
		errs = append(errs, fmt.Errorf("--max-ids %d: invalid number: want 1 or more", f.maxIDs))
	}
	if !a.SharedPermits() {
		errs = append(errs, errors.New("--permits: missing or not shared: "+
			"want the permit store of the replicas, such as --permits redis://127.0.0.1:6379"))
	}
	if a.PoliciesURL == "" {
		errs = append(errs, fmt.Errorf("--policies: missing: want the policy store of the quotas, "+
			"such as --policies etcd://127.0.0.1:2379, or %s set", throttle.EnvPolicies))
	}
	return errors.Join(errs...)
}

// runRatekeeper runs a ratekeeper until ctx ends.
func runRatekeeper(ctx context.Context, a *cli.App, f ratekeeperFlags) (err error) {
	policiesURL, permitsURL, err := a.StoreURLs()
	if err != nil {
		return err
	}
	keeper, closeStores, err := throttle.OpenRatekeeper(ctx, policiesURL, permitsURL)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, closeStores()) }()
	keeper.Cluster, keeper.Name, keeper.MaxIDs = a.Cluster, f.name, f.maxIDs
	handler := slog.Handler(slog.NewTextHandler(a.Stderr, nil))
	if a.Output == "json" {
		handler = slog.NewJSONHandler(a.Stderr, nil)
	}
	keeper.Logger = slog.New(handler)
	stop, err := f.serve(a, keeper)
	if err != nil {
		return err
	}
	defer stop()
	return keeper.Run(ctx)
}

// serve serves what the flags say until stop is called.
func (f ratekeeperFlags) serve(a *cli.App, keeper *ratekeeper.Ratekeeper) (stop func(), err error) {
	secure, err := f.tls.Config()
	if err != nil {
		return nil, cli.Usage(err)
	}
	a.WarnOfFiles(f.tokens, f.tls.Key)
	var stops []func()
	stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
	start := func(address, paths string, mux *http.ServeMux) {
		if err != nil || address == "" {
			return
		}
		end, at, failed := serve.Listen(address, secure, mux)
		if err = failed; err != nil {
			stop()
			return
		}
		stops = append(stops, end)
		scheme := "http"
		if secure != nil {
			scheme = "https"
		}
		a.Warn("serving %s://%s%s", scheme, at, paths)
	}
	reports, paths := http.NewServeMux(), "/reports"
	if f.listen != "" {
		tokens, err := ratekeeper.OpenTokens(f.tokens, keeper.Logger)
		if err != nil {
			return nil, cli.Usage(err)
		}
		reports.Handle("/reports", keeper.Handler(tokens.Backend))
		if secure == nil && serve.Remote(f.listen) {
			a.Warn("--listen %s: the tokens go over the network in plaintext: use TLS, with "+
				"--tls-cert and --tls-key", f.listen)
		}
	}
	figures := http.NewServeMux()
	if f.metrics == "" || f.metrics == f.listen {
		figures, paths = reports, "/reports and /metrics"
	}
	figures.Handle("/metrics", metrics.RatekeeperHandler(keeper))
	if figures != reports {
		start(f.metrics, "/metrics", figures)
	}
	start(f.listen, paths, reports)
	return stop, err
}
