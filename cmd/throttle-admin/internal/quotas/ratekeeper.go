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

func newRatekeeperCommand(a *cli.App) *cobra.Command {
	var name, listen, tokenFile string
	var maxIDs int
	cmd := &cobra.Command{
		Use:   "ratekeeper",
		Short: "Find the rates of throughput quotas, until it is interrupted",
		Long: `Find the rates of throughput quotas, until it is interrupted. Of any number of ratekeepers one is elected;
another takes over within 5 s when it dies. Programs can run one beside their Limiter, too
(throttle.WithRatekeeper). Each decision is a line on standard error, with all it follows from.

With --listen it serves /reports, where backends report what ids cost and how near they are to their targets (POST,
Authorization: Bearer with the token of --token-file, see docs/slowing-down.md), and /metrics.`,
		Example: `  throttle-admin ratekeeper --policies etcd://127.0.0.1:2379 --permits redis://127.0.0.1:6379
  throttle-admin ratekeeper --listen 127.0.0.1:9402 --token-file token`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var token string
			var err error
			if (listen == "") != (tokenFile == "") {
				err = errors.New("--listen, --token-file: set both, or neither: reports need a token")
			} else if tokenFile != "" {
				token, err = readToken(tokenFile)
			}
			if maxIDs < 1 {
				err = errors.Join(err, fmt.Errorf("--max-ids %d: is invalid: want 1 or more ids of a backend's report", maxIDs))
			}
			if a.PermitsURL == "" || strings.HasPrefix(a.PermitsURL, "memory:") || strings.HasPrefix(a.PermitsURL, "none:") {
				err = errors.Join(err, errors.New("--permits is not set, or one process's own: say where replicas allocate, such as --permits redis://127.0.0.1:6379"))
			}
			if a.PoliciesURL == "" {
				err = errors.Join(err, fmt.Errorf("--policies is not set: say where quotas are kept, such as --policies etcd://127.0.0.1:2379, or set %s", throttle.EnvPolicies))
			}
			if err != nil {
				return cli.Usage(err)
			}
			store, storeErr := a.PoliciesOptions.Add(a.PoliciesURL)
			permits, permitsErr := a.PermitsOptions.Add(a.PermitsURL)
			if err := errors.Join(storeErr, permitsErr); err != nil {
				return cli.Usage(err)
			}
			keeper, closeAll, err := throttle.OpenRatekeeper(cmd.Context(), store, permits)
			if err != nil {
				return cli.Usage(err)
			}
			keeper.Cluster, keeper.Name, keeper.MostIDs = a.Cluster, name, maxIDs
			handler := slog.Handler(slog.NewTextHandler(a.Stderr, nil))
			if a.Output == "json" {
				handler = slog.NewJSONHandler(a.Stderr, nil)
			}
			keeper.Logger = slog.New(handler)
			serving := func() {}
			if listen != "" {
				mux := http.NewServeMux()
				mux.Handle("/reports", keeper.Handler(token))
				mux.Handle("/metrics", metrics.RatekeeperHandler(keeper))
				var at net.Addr
				if serving, at, err = serve(listen, mux); err != nil {
					return errors.Join(err, closeAll())
				}
				a.Warn("reports go to http://%s/reports, metrics are at /metrics", at)
			}
			err = keeper.Run(cmd.Context())
			serving()
			return errors.Join(err, closeAll())
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "of this candidate; default host name and process id")
	cmd.Flags().IntVar(&maxIDs, "max-ids", 1000, "costliest ids of a backend's report to follow, beside those with a quota")
	cmd.Flags().StringVar(&listen, "listen", "", "address for /reports and /metrics, such as 127.0.0.1:9402; default: none")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token that reports must carry")
	return cmd
}

// readToken reads a secret of a file's first line.
func readToken(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token, _, _ := strings.Cut(string(text), "\n")
	if token = strings.TrimSpace(token); len(token) < 8 {
		return "", fmt.Errorf("token file %s: has no token of at least 8 characters in its first line", name)
	}
	return token, nil
}

// serve serves h until the function that it returns is called, and says where.
func serve(address string, h http.Handler) (stop func(), at net.Addr, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }() // ends with stop
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = errors.Join(s.Shutdown(ctx), s.Close()) // who is not done by then is cut off
	}, l.Addr(), nil
}
