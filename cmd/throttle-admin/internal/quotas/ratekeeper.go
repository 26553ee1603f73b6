package quotas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
)

// ratekeeperFlags are the flags of the command ratekeeper.
type ratekeeperFlags struct {
	name, listen, tokenFile string
	maxIDs                  int
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

With --listen, the ratekeeper serves /metrics and /reports. Backends POST their load and the cost
of each id to /reports, with the header "Authorization: Bearer TOKEN" and the token of
--token-file; see docs/slowing-down.md.`,
		Example: `  throttle-admin ratekeeper
  throttle-admin ratekeeper --listen 127.0.0.1:9402 --token-file token`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := f.check(a)
			if err != nil {
				return cli.Usage(err)
			}
			return runRatekeeper(cmd.Context(), a, f, token)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name in the election (default host name and process id)")
	flags.IntVar(&f.maxIDs, "max-ids", 1000,
		"ids without a quota to track of each backend's report, the costliest first")
	flags.StringVar(&f.listen, "listen", "",
		"address to serve /reports and /metrics at, such as 127.0.0.1:9402 (default none)")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the token that reports must carry")
	return cmd
}

// check validates the flags and returns the token of --token-file.
func (f ratekeeperFlags) check(a *cli.App) (token string, err error) {
	var errs []error
	switch {
	case (f.listen == "") != (f.tokenFile == ""):
		errs = append(errs, errors.New("--listen, --token-file: one is missing: want both flags"))
	case f.tokenFile != "":
		token, err = readToken(f.tokenFile)
		errs = append(errs, err)
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
	return token, errors.Join(errs...)
}

// runRatekeeper runs a ratekeeper until ctx ends.
func runRatekeeper(ctx context.Context, a *cli.App, f ratekeeperFlags, token string) (err error) {
	policiesURL, policiesErr := a.PoliciesOptions.Add(a.PoliciesURL)
	permitsURL, permitsErr := a.PermitsOptions.Add(a.PermitsURL)
	if err := errors.Join(policiesErr, permitsErr); err != nil {
		return cli.Usage(err)
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
	if f.listen != "" {
		mux := http.NewServeMux()
		mux.Handle("/reports", keeper.Handler(token))
		mux.Handle("/metrics", metrics.RatekeeperHandler(keeper))
		stop, at, err := serve(f.listen, mux)
		if err != nil {
			return err
		}
		defer stop()
		a.Warn("serving http://%s/reports and /metrics", at)
	}
	return keeper.Run(ctx)
}

// readToken returns the token in the first line of a file.
func readToken(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token, _, _ := strings.Cut(string(text), "\n")
	if token = strings.TrimSpace(token); len(token) < 8 {
		return "", fmt.Errorf("token file %s: invalid token in its first line: want 8 characters "+
			"or more", name)
	}
	return token, nil
}

// serve serves h at an address until stop is called.
func serve(address string, h http.Handler) (stop func(), at net.Addr, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
	}
	go func() { _ = s.Serve(l) }() // returns when stop is called
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = errors.Join(s.Shutdown(ctx), s.Close()) // Close ends requests that are left
	}, l.Addr(), nil
}
