package cli

import (
	"context"
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
	"github.com/dispatchthrottle/throttle/internal/secrets"
)

// StoreTimeout bounds the time that one command spends on a store.
const StoreTimeout = 5 * time.Second

// permitTimeout bounds each call of a permit store.
const permitTimeout = 2 * time.Second

// urlOptions are the flags that complete a store's URL, so that secrets need not be in it.
type urlOptions struct{ passwordFile, ca, cert, key string }

func (o *urlOptions) flags(flags *pflag.FlagSet, what string) {
	store := map[string]string{"policies": "the policy store", "permits": "the permit store"}[what]
	flags.StringVar(&o.passwordFile, what+"-password-file", "", "file with the password for "+store)
	flags.StringVar(&o.ca, what+"-tls-ca", "",
		"PEM file of the authorities that "+store+"'s certificate may come from; turns TLS on")
	flags.StringVar(&o.cert, what+"-tls-cert", "",
		"PEM file of the client certificate for "+store+"; turns TLS on")
	flags.StringVar(&o.key, what+"-tls-key", "",
		"PEM file of that certificate's key; turns TLS on")
}

// Add returns the URL with the options that are set; they take precedence over the URL's own. It
// refuses a URL in which a part of the password would be taken for a host or a path, which errors
// may show.
func (o *urlOptions) Add(text string) (string, error) {
	scheme, _, _ := strings.Cut(text, ":")
	plain := slices.Contains([]string{"file", "memory"}, scheme)
	if !plain && straysAt(text) {
		return "", errors.New("URL: has a misplaced @: want scheme://user:password@host:port, " +
			"with / in the password written as %2F, ? as %3F and @ as %40")
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

// straysAt reports whether a URL has an @ in another place than before its hosts.
func straysAt(text string) bool {
	before, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?")
	return strings.Contains(before, "@") || end >= 0 && strings.Contains(rest[end:], "@")
}

// openPolicies opens the policy store of --policies.
func (a *App) openPolicies(ctx context.Context) (configstore.Store, error) {
	if a.PoliciesURL == "" {
		return nil, Usage(fmt.Errorf("--policies: missing: want a policy store, "+
			"such as --policies etcd://127.0.0.1:2379, or %s set", throttle.EnvPolicies))
	}
	if strings.HasPrefix(a.PoliciesURL, "memory:") {
		return nil, Usage(&hintError{
			errors.New("--policies memory: is lost when this command ends"),
			"--policies file:policies.yaml needs no service; throttle-admin dev runs an etcd",
		})
	}
	text, err := a.PoliciesOptions.Add(a.PoliciesURL)
	if err != nil {
		return nil, Usage(fmt.Errorf("policy store %w", err))
	}
	if strings.HasPrefix(text, "file:") && !strings.Contains(text, "?") {
		text += "?create=true" // the first command creates it
	}
	a.warnOf(text)
	store, err := throttle.OpenPolicies(ctx, text)
	return store, Usage(err)
}

// WithStore runs f with the policy store of --policies.
func (a *App) WithStore(
	ctx context.Context, f func(context.Context, configstore.Store) error,
) error {
	store, err := a.openPolicies(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
	defer cancel()
	err = f(ctx, store)
	if _, ok := errors.AsType[*hintError](err); !ok && errors.Is(err, context.DeadlineExceeded) {
		err = &hintError{
			fmt.Errorf("the policy store does not answer: %w", err),
			"check --policies, and whether the policy store is up",
		}
	}
	return errors.Join(err, store.Close())
}

// Policies returns the stored policies. It warns if the file does not exist: its name may be
// wrong.
func (a *App) Policies(ctx context.Context) (s configstore.Snapshot, err error) {
	err = a.WithStore(ctx, func(ctx context.Context, store configstore.Store) error {
		s, err = store.List(ctx)
		return err
	})
	if err == nil && s.Revision == 0 { // a file that does not exist; etcd starts at 1
		a.Warn("%s: no such file", a.PoliciesURL)
	}
	return s, err
}

// OpenPermits opens the permit store of --permits. It returns nil if none is set, or one that
// processes do not share.
func (a *App) OpenPermits() (dispatch.PermitStore, error) {
	if !a.SharedPermits() {
		return nil, nil
	}
	text, err := a.PermitsOptions.Add(a.PermitsURL)
	if err != nil {
		return nil, Usage(fmt.Errorf("permit store %w", err))
	}
	a.warnOf(text)
	permits, err := throttle.OpenPermits(patient(text))
	return permits, Usage(err)
}

// patient returns a permit store's URL with the time-out of a command, unless it has its own. A
// command reads a store once, and has no time to learn how far away it is.
func patient(text string) string {
	base, query, _ := strings.Cut(text, "?")
	if options, err := url.ParseQuery(query); err != nil || options.Has("timeout") {
		return text
	}
	if query != "" {
		query += "&"
	}
	return base + "?" + query + "timeout=" + permitTimeout.String()
}

// StoreURLs returns the URLs of both stores with the options of the flags.
func (a *App) StoreURLs() (policies, permits string, err error) {
	policies, policiesErr := a.PoliciesOptions.Add(a.PoliciesURL)
	permits, permitsErr := a.PermitsOptions.Add(a.PermitsURL)
	if err := errors.Join(policiesErr, permitsErr); err != nil {
		return "", "", Usage(err)
	}
	a.warnOf(policies)
	a.warnOf(permits)
	return policies, permits, nil
}

// warnOf warns of what is unsafe about the URL of a store, once in a run.
func (a *App) warnOf(url string) {
	for _, w := range throttle.Warnings(url) {
		a.warnOnce(w)
	}
}

// WarnOfFiles warns of files with secrets that other users may read, once in a run. Empty names
// are none.
func (a *App) WarnOfFiles(names ...string) {
	for _, name := range names {
		if err := secrets.Exposed(name); name != "" && err != nil {
			a.warnOnce(err.Error())
		}
	}
}

func (a *App) warnOnce(text string) {
	if !slices.Contains(a.warned, text) {
		a.warned = append(a.warned, text)
		a.Warn("%s", text)
	}
}

// SharedPermits reports whether --permits is set to a permit store that processes share.
func (a *App) SharedPermits() bool {
	return a.PermitsURL != "" &&
		!strings.HasPrefix(a.PermitsURL, "memory:") && !strings.HasPrefix(a.PermitsURL, "none:")
}
