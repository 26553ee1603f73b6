// Package pulsar has the commands that read what a Pulsar cluster already has.
package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/auth"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newPulsarCommand(a)}
}

// newPulsarCommand has what is for Pulsar clusters only.
func newPulsarCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pulsar",
		Short:   "Read what a Pulsar cluster already has",
		Example: "  throttle-admin pulsar import --web http://127.0.0.1:8080",
		RunE:    cli.Subcommands,
	}
	cmd.AddCommand(newPulsarImportCommand(a))
	return cmd
}

func newPulsarImportCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var web pulsaradmin.Config
	var namespaces []string
	var yes bool
	cmd := &cobra.Command{
		Use:   "import --web URL",
		Short: "Make policies of the dispatch rates that a Pulsar cluster has",
		Long: `Make policies of the dispatch rates that a Pulsar cluster has: the brokers' configuration, namespaces, topics and
subscriptions. It shows what would change; with --yes it stores that. Policies that Pulsar has no rate for stay.

A rate of n with ratePeriodInSecond p becomes n/p. Where Pulsar has neither messages nor bytes above 0, it goes by the
wider scope, and nothing is set here. Where it has one of them, 0 is 0, not throttled, and so is -1 if the wider scope has
a rate, for Pulsar replaces both. It keeps a rate for each partition and broker: here it is one for all of them. Rates
for every subscription of a namespace or topic are written for the subscriptions that there are now. What cannot be
carried over is said on stderr.`,
		Example: `  throttle-admin pulsar import --web http://127.0.0.1:8080
  throttle-admin pulsar import --web https://pulsar:8443 --token-file token --namespace public/default --yes`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range namespaces {
				if scope, err := policy.ParseScope(name); err != nil || scope.Kind != policy.NamespaceKind {
					return cli.Usage(&policy.FieldError{Field: "namespace", Value: name, Reason: "is no namespace: write tenant/namespace"})
				}
			}
			c, err := newPulsarWeb(&web)
			if err != nil {
				return cli.Usage(err)
			}
			im := &pulsarImport{web: c, only: namespaces, policies: map[policy.Scope]policy.Policy{}}
			if err := im.read(cmd.Context()); err != nil {
				return err
			}
			return change.Propose(a, cmd, f, yes, "pulsar import --web "+web.WebServiceURL, im.policies, im.said)
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&yes, "yes", false, "store the changes")
	flags.StringSliceVar(&namespaces, "namespace", nil, "only these, tenant/namespace; default all")
	flags.StringVar(&web.WebServiceURL, "web", "", "Pulsar's web service, http://host:8080")
	flags.StringVar(&web.TokenFile, "token-file", "", "file with a token for it")
	flags.StringVar(&web.TLSTrustCertsFilePath, "tls-ca", "", "PEM file of who may vouch for it")
	flags.StringVar(&web.TLSCertFile, "tls-cert", "", "PEM file of our certificate")
	flags.StringVar(&web.TLSKeyFile, "tls-key", "", "PEM file of that certificate's key")
	return cmd
}

// A pulsarWeb asks a cluster's admin API, of which pulsaradmin's types leave fields out.
type pulsarWeb struct{ client *rest.Client }

func newPulsarWeb(config *pulsaradmin.Config) (*pulsarWeb, error) {
	if strings.ContainsAny(config.WebServiceURL, "@?") { // which may hold secrets
		return nil, errors.New("web: has an @ or a ?: write http://host:8080, and say --token-file")
	}
	u, err := url.Parse(config.WebServiceURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, &policy.FieldError{Field: "web", Value: config.WebServiceURL, Reason: "is no web service: write http://host:8080 or https://host:8443"}
	}
	provider, err := auth.GetAuthProvider(config)
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	return &pulsarWeb{&rest.Client{ServiceURL: config.WebServiceURL, VersionInfo: "throttle-admin", HTTPClient: &http.Client{Timeout: webTimeout, Transport: provider}}}, nil
}

const (
	webTimeout = 10 * time.Second // of a request
	webAtOnce  = 8                // requests
)

// get reads the answer of a path into v; found is false if there is nothing.
func (w *pulsarWeb) get(ctx context.Context, v any, parts ...string) (found bool, err error) {
	path := "/admin/v2/" + strings.Join(parts, "/")
	body, err := w.client.GetBodyWithContext(ctx, path, v)
	var refused rest.Error
	if errors.As(err, &refused) && refused.Code == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		err = fmt.Errorf("GET %s: %w", path, err)
		switch refused.Code {
		case http.StatusUnauthorized, http.StatusForbidden:
			err = cli.Hint(err, "say --token-file FILE, of a role that may administrate the cluster")
		case 0:
			err = cli.Hint(err, "check --web, and whether the broker is up")
		}
	}
	return len(body) > 0, err
}

// A pulsarRate is Pulsar's DispatchRate, of a namespace or a topic: older brokers leave the last two out.
type pulsarRate struct {
	Messages int64 `json:"dispatchThrottlingRateInMsg"`
	Bytes    int64 `json:"dispatchThrottlingRateInByte"`
	Period   int64 `json:"ratePeriodInSecond"`
	Relative bool  `json:"relativeToPublishRate"`
}

// set reports whether Pulsar goes by the rate, and not by the wider scope's.
func (r pulsarRate) set() bool { return r.Messages > 0 || r.Bytes > 0 }

// orInherited is a rate of the brokers' configuration, where 0 is what is not set.
func (r pulsarRate) orInherited() pulsarRate {
	if r.Messages == 0 {
		r.Messages = -1
	}
	if r.Bytes == 0 {
		r.Bytes = -1
	}
	return r
}

// A pulsarImport makes policies of what a cluster has.
type pulsarImport struct {
	web  *pulsarWeb
	only []string // namespaces; none = all

	cluster, subscriptions pulsarRate // the brokers' defaults

	mu       sync.Mutex
	policies map[policy.Scope]policy.Policy
	said     []string // what cannot be carried over
	faults   []error
}

func (im *pulsarImport) say(format string, args ...any) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.said = append(im.said, fmt.Sprintf(format, args...))
}

func (im *pulsarImport) read(ctx context.Context) error {
	if err := im.readBrokers(ctx); err != nil {
		return err
	}
	namespaces := im.only
	if len(namespaces) == 0 {
		var tenants []string
		if _, err := im.web.get(ctx, &tenants, "tenants"); err != nil {
			return err
		}
		for _, tenant := range tenants {
			var names []string
			if _, err := im.web.get(ctx, &names, "namespaces", tenant); err != nil {
				return err
			}
			namespaces = append(namespaces, slices.DeleteFunc(names, func(name string) bool { return name == "pulsar/system" })...)
		}
	}
	for _, namespace := range namespaces {
		if err := im.readNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	slices.Sort(im.said)
	return errors.Join(im.faults...)
}

// readBrokers reads the configuration in force, which has the dynamic one in it.
func (im *pulsarImport) readBrokers(ctx context.Context) error {
	var config map[string]string
	_, err := im.web.get(ctx, &config, "brokers", "configuration", "runtime")
	var refused rest.Error
	switch {
	case errors.As(err, &refused) && refused.Code != http.StatusInternalServerError && len(im.only) > 0: // a namespace's own admin
		im.say("the brokers' configuration is left out: %v", err)
	case err != nil:
		return err
	case len(config) == 0: // for other requests, 404 is what is not set
		return cli.Hint(fmt.Errorf("web %q: is not the web service of a Pulsar: it has no brokers' configuration at /admin/v2", im.web.client.ServiceURL),
			"check --web: it is http://host:port of a broker, 8080 by default, without a path")
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(cmp.Or(config[name], "0"), 10, 64)
		if err != nil {
			im.faults = append(im.faults, &policy.FieldError{Field: name, Value: config[name], Reason: "is not a number"})
		}
		return n
	}
	im.cluster = pulsarRate{number("dispatchThrottlingRatePerTopicInMsg"), number("dispatchThrottlingRatePerTopicInByte"), 1, false}
	im.subscriptions = pulsarRate{number("dispatchThrottlingRatePerSubscriptionInMsg"), number("dispatchThrottlingRatePerSubscriptionInByte"), 1, false}
	if config["dispatchThrottlingRateRelativeToPublishRate"] == "true" {
		im.cluster.Relative, im.subscriptions.Relative = true, true
	}
	if im.cluster.set() {
		im.add(policy.Scope{}, im.cluster.orInherited(), pulsarRate{})
	}
	for _, name := range []string{"dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte"} {
		if n := number(name); n > 0 {
			im.say("broker: %s %d is for each broker, over all topics: not carried over; see aggregate", name, n)
		}
	}
	for _, name := range []string{"dispatchThrottlingRatePerReplicatorInMsg", "dispatchThrottlingRatePerReplicatorInByte"} {
		if n := number(name); n > 0 {
			im.say("broker: %s %d: replication is not dispatched to consumers: not carried over", name, n)
		}
	}
	if config["dispatchThrottlingOnNonBacklogConsumerEnabled"] == "true" && im.cluster.set() {
		im.say("broker: dispatchThrottlingOnNonBacklogConsumerEnabled is true: for that, throttle-admin set cluster throttleCaughtUp=true")
	}
	return nil
}

// add sets a scope's rates. wider is what the scope would inherit.
func (im *pulsarImport) add(scope policy.Scope, r, wider pulsarRate) {
	period := max(1, r.Period)
	rate := func(n, inherited int64, parse func(string) (policy.Rate, error)) policy.Rate {
		if n < 0 && inherited <= 0 {
			return policy.Rate{}
		}
		text := "0"
		if n > 0 {
			text = fmt.Sprintf("%d/%ds", n, period)
		}
		rate, err := parse(text)
		if err != nil {
			im.mu.Lock()
			im.faults = append(im.faults, fmt.Errorf("%s: %w", scope, err))
			im.mu.Unlock()
		}
		return rate
	}
	p := policy.Policy{MessageRate: rate(r.Messages, wider.Messages, policy.ParseRate), ByteRate: rate(r.Bytes, wider.Bytes, policy.ParseByteRate)}
	if r.Relative {
		im.say("%s: relativeToPublishRate cannot be carried over: the rate is the limit itself", cmp.Or(scope.String(), "cluster"))
	}
	if p.IsZero() {
		return
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.policies[scope] = p
}

// readNamespace reads a namespace and its topics.
func (im *pulsarImport) readNamespace(ctx context.Context, name string) error {
	var policies struct {
		Topic        map[string]pulsarRate `json:"topicDispatchRate"`
		Old          map[string]pulsarRate `json:"clusterDispatchRate"` // the former's name before
		Subscription map[string]pulsarRate `json:"subscriptionDispatchRate"`
		Replicator   map[string]pulsarRate `json:"replicatorDispatchRate"`
	}
	found, err := im.web.get(ctx, &policies, "namespaces", name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("namespace %s: is not there", name)
	}
	scope, err := policy.ParseScope(name)
	if err != nil {
		im.say("%s: policies cannot name it: %v", name, err)
		return nil
	}
	if len(policies.Topic) == 0 {
		policies.Topic = policies.Old
	}
	topics, subscriptions := im.cluster, im.subscriptions // what theirs would inherit
	for _, cluster := range slices.Sorted(maps.Keys(policies.Topic)) {
		r := policies.Topic[cluster]
		if !r.set() {
			continue
		}
		if len(policies.Topic) > 1 {
			scope.Cluster = cluster
		}
		im.add(scope, r, im.cluster)
		topics = r
	}
	for _, cluster := range slices.Sorted(maps.Keys(policies.Subscription)) {
		if r := policies.Subscription[cluster]; r.set() {
			subscriptions = r
		}
	}
	if len(policies.Subscription) > 1 {
		im.say("%s: the rates of its subscriptions differ between clusters: %+v is taken", name, subscriptions)
	}
	if len(policies.Replicator) > 0 {
		im.say("%s: its replicatorDispatchRate: replication is not dispatched to consumers: not carried over", name)
	}
	return im.readTopics(ctx, name, topics, subscriptions)
}

func (im *pulsarImport) readTopics(ctx context.Context, namespace string, wider, subscriptions pulsarRate) error {
	var partitioned, all []string
	if _, err := im.web.get(ctx, &partitioned, "persistent", namespace, "partitioned"); err != nil {
		return err
	}
	if _, err := im.web.get(ctx, &all, "persistent", namespace); err != nil {
		return err
	}
	topics := map[policy.Topic]string{}
	for _, name := range slices.Concat(partitioned, all) {
		topic, err := policy.ParseTopic(name)
		if err != nil {
			im.say("%s: policies cannot name it: %v", name, err)
			continue
		}
		if !strings.HasPrefix(topic.Name, "__") { // Pulsar's own
			local := name[strings.LastIndex(name, "/")+1:]
			if _, ok := topics[topic]; !ok {
				topics[topic] = strings.Join([]string{"persistent", namespace, url.PathEscape(local)}, "/")
			}
		}
	}
	slots, failed := make(chan struct{}, webAtOnce), make(chan error, len(topics))
	for topic, path := range topics {
		slots <- struct{}{}
		go func() {
			failed <- im.readTopic(ctx, topic, path, wider, subscriptions)
			<-slots
		}()
	}
	var errs []error
	for range topics {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

func (im *pulsarImport) readTopic(ctx context.Context, topic policy.Topic, path string, wider, subscriptions pulsarRate) error {
	rate := func(parts ...string) (r pulsarRate, err error) { // nothing there is a rate that is not set
		_, err = im.web.get(ctx, &r, append([]string{path}, parts...)...)
		return r, err
	}
	own, err := rate("dispatchRate")
	if err != nil {
		return err
	}
	if own.set() {
		im.add(policy.TopicScope(topic), own, wider)
	}
	if own, err = rate("subscriptionDispatchRate"); err != nil {
		return err
	} else if own.set() {
		subscriptions = own
	}
	var names []string
	if _, err := im.web.get(ctx, &names, path, "subscriptions"); err != nil {
		return err
	}
	for _, name := range names {
		own, err := rate(url.PathEscape(name), "dispatchRate")
		if err != nil {
			return err
		}
		if !own.set() {
			own = subscriptions
		}
		if own.set() {
			im.add(policy.SubscriptionScope(topic, name), own.orInherited(), pulsarRate{})
		}
	}
	return nil
}
