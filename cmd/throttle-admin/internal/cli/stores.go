package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// StoreTimeout bounds what one command asks of a store.
const StoreTimeout = 5 * time.Second

// URLOptions complement a URL, so that it need not hold secrets or be quoted.
type URLOptions struct{ passwordFile, ca, cert, key string }

func (o *URLOptions) flags(flags *pflag.FlagSet, what string) {
	flags.StringVar(&o.passwordFile, what+"-password-file", "", "file with the password for the "+what)
	flags.StringVar(&o.ca, what+"-tls-ca", "", "PEM file of who may vouch for the "+what+"; turns TLS on")
	flags.StringVar(&o.cert, what+"-tls-cert", "", "PEM file of our certificate for the "+what+"; turns TLS on")
	flags.StringVar(&o.key, what+"-tls-key", "", "PEM file of that certificate's key; turns TLS on")
}

// Add puts the options that are set before those of the URL, over which they win. It refuses a URL of which a
// part of the password could be taken for something that may be shown.
func (o *URLOptions) Add(text string) (string, error) {
	scheme, _, _ := strings.Cut(text, ":")
	plain := slices.Contains([]string{"file", "memory"}, scheme)
	if !plain && straysAt(text) {
		return "", errors.New("URL: has an @ where none belongs: write scheme://user:password@host:port, and in the password / as %2F, ? as %3F, @ as %40")
	}
	options := []struct{ name, value string }{
		{"password-file", o.passwordFile}, {"ca", o.ca}, {"cert", o.cert}, {"key", o.key},
	}
	var set []string
	for _, option := range options {
		if option.value != "" {
			set = append(set, option.name+"="+url.QueryEscape(option.value))
		}
	}
	if len(set) == 0 {
		return text, nil
	}
	if plain {
		return "", fmt.Errorf("URL: %s: takes neither password nor TLS", scheme)
	}
	base, query, _ := strings.Cut(text, "?")
	if query != "" {
		set = append(set, query)
	}
	return base + "?" + strings.Join(set, "&"), nil
}

// straysAt reports whether a URL has an @ elsewhere than before its hosts.
func straysAt(text string) bool {
	before, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?")
	return strings.Contains(before, "@") || end >= 0 && strings.Contains(rest[end:], "@")
}

// WithStore runs f with the store of --policies.
func (a *App) WithStore(ctx context.Context, f func(context.Context, configstore.Store) error) error {
	if a.PoliciesURL == "" {
		return Misuse(fmt.Errorf("--policies is not set: say where policies are kept, such as --policies etcd://127.0.0.1:2379, or set %s", throttle.EnvPolicies))
	}
	if strings.HasPrefix(a.PoliciesURL, "memory:") {
		return Misuse(&hintError{errors.New("--policies memory: ends with this command: nothing would be stored"), "--policies file:policies.yaml needs no service; throttle-admin dev runs an etcd"})
	}
	text, err := a.PoliciesOptions.Add(a.PoliciesURL)
	if err != nil {
		return Misuse(fmt.Errorf("store %w", err))
	}
	if strings.HasPrefix(text, "file:") && !strings.Contains(text, "?") {
		text += "?create=true" // the first command creates it
	}
	store, err := throttle.OpenPolicies(ctx, text)
	if err != nil {
		return Misuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
	defer cancel()
	err = f(ctx, store)
	if _, said := errors.AsType[*hintError](err); !said && errors.Is(err, context.DeadlineExceeded) {
		err = &hintError{fmt.Errorf("the store does not answer: %w", err), "check --policies, and whether the store is up"}
	}
	return errors.Join(err, store.Close())
}

// List returns what is stored. Of a file that is not there it says so: its name may be wrong.
func (a *App) List(ctx context.Context, store configstore.Store) (configstore.Snapshot, error) {
	s, err := store.List(ctx)
	if err == nil && s.Revision == 0 { // only a file can have that
		a.Warn("%s: no such file yet", a.PoliciesURL)
	}
	return s, err
}

// OpenPermits opens the permit store of --permits. It returns nil if there is none that knows of other processes.
func (a *App) OpenPermits() (dispatch.PermitStore, error) {
	if a.PermitsURL == "" || strings.HasPrefix(a.PermitsURL, "memory:") || strings.HasPrefix(a.PermitsURL, "none:") {
		return nil, nil
	}
	text, err := a.PermitsOptions.Add(a.PermitsURL)
	if err != nil {
		return nil, Misuse(fmt.Errorf("permit store %w", err))
	}
	permits, err := throttle.OpenPermits(text)
	return permits, Misuse(err)
}

// Published returns the status records of a cluster's replicas, sorted by name.
func Published(ctx context.Context, permits dispatch.PermitStore, cluster string) ([]dispatch.Stats, error) {
	texts, err := permits.Published(ctx, cluster)
	var all []dispatch.Stats
	for _, text := range texts {
		var s dispatch.Stats
		if e := json.Unmarshal(text, &s); e != nil {
			err = errors.Join(err, fmt.Errorf("a replica's status record: %w", e))
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b dispatch.Stats) int {
		if a.Replica < b.Replica {
			return -1
		}
		return 1
	})
	return all, err
}
