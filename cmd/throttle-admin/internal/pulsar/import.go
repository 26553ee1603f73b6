// Package pulsar holds the commands that read the settings of a Pulsar cluster.
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

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newPulsarCommand(a)}
}

// newPulsarCommand returns the command for Pulsar clusters.
func newPulsarCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pulsar",
		Short:   "Import the dispatch rates of a Pulsar cluster",
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
		Short: "Import the dispatch rates of a Pulsar cluster as policies",
		Long: `Import the dispatch rates of a Pulsar cluster as policies: those of its brokers'
configuration, namespaces, topics and subscriptions. Without --yes, only show what would change.
Policies without a rate in Pulsar stay as they are, and settings without an equivalent here are
listed on stderr.

A rate of n with ratePeriodInSecond p becomes n/p. If neither the message rate nor the byte rate is
above 0, the scope inherits in Pulsar, and nothing is set. If one is, both are set, as Pulsar
replaces both: 0 becomes 0, and -1 becomes 0 if the wider scope has a rate. Pulsar applies a rate
to each partition and broker; the policy is for all of them together. A rate for all subscriptions
of a namespace or topic is set for each subscription that exists now.`,
		Example: `  throttle-admin pulsar import --web http://127.0.0.1:8080
  throttle-admin pulsar import --web https://pulsar:8443 --token-file token --yes
  throttle-admin pulsar import --web http://127.0.0.1:8080 --namespace public/default`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range namespaces {
				scope, err := policy.ParseScope(name)
				if err != nil || scope.Kind != policy.NamespaceKind {
					return cli.Usage(cli.ArgError("namespace", name,
						"invalid namespace: want tenant/namespace"))
				}
			}
			c, err := newWebService(&web)
			if err != nil {
				return cli.Usage(err)
			}
			a.WarnOfFiles(web.TokenFile, web.TLSKeyFile)
			if web.TokenFile != "" && c.plaintext() {
				a.Warn("--web %s: the token goes over the network in plaintext: use https",
					web.WebServiceURL)
			}
			im := &importer{web: c, only: namespaces, policies: map[policy.Scope]policy.Policy{}}
			if err := im.read(cmd.Context()); err != nil {
				return err
			}
			return change.Propose(a, cmd, f, yes, change.Import{
				Policies: im.policies, Warnings: im.warnings,
				Review: "pulsar import --web " + web.WebServiceURL,
			})
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&yes, "yes", false, "store the changes")
	flags.StringSliceVar(&namespaces, "namespace", nil, "import only this namespace (default all)")
	flags.StringVar(&web.WebServiceURL, "web", "", "the brokers' web service, http://host:8080")
	flags.StringVar(&web.TokenFile, "token-file", "", "file with a token for the web service")
	flags.StringVar(&web.TLSTrustCertsFilePath, "tls-ca", "",
		"PEM file of the authorities that the web service's certificate may come from")
	flags.StringVar(&web.TLSCertFile, "tls-cert", "", "PEM file of the client certificate")
	flags.StringVar(&web.TLSKeyFile, "tls-key", "", "PEM file of that certificate's key")
	return cmd
}

// A dispatchRate is Pulsar's DispatchRate. Older brokers leave the last two fields out.
type dispatchRate struct {
	Messages int64 `json:"dispatchThrottlingRateInMsg"`
	Bytes    int64 `json:"dispatchThrottlingRateInByte"`
	Period   int64 `json:"ratePeriodInSecond"`
	Relative bool  `json:"relativeToPublishRate"`
}

// set reports whether the rate applies in Pulsar; else the wider scope's does.
func (r dispatchRate) set() bool { return r.Messages > 0 || r.Bytes > 0 }

// orInherited returns the rate with -1 in place of 0: in the brokers' configuration, 0 is not set.
func (r dispatchRate) orInherited() dispatchRate {
	if r.Messages == 0 {
		r.Messages = -1
	}
	if r.Bytes == 0 {
		r.Bytes = -1
	}
	return r
}

// An importer makes policies of the settings of a cluster.
type importer struct {
	web  *webService
	only []string // the namespaces to import; empty means all

	cluster, subscriptions dispatchRate // the brokers' defaults

	mu       sync.Mutex
	policies map[policy.Scope]policy.Policy
	warnings []string // settings without an equivalent
	faults   []error
}

func (im *importer) warn(format string, args ...any) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.warnings = append(im.warnings, fmt.Sprintf(format, args...))
}

func (im *importer) read(ctx context.Context) error {
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
			for _, name := range names {
				if name != "pulsar/system" {
					namespaces = append(namespaces, name)
				}
			}
		}
	}
	for _, namespace := range namespaces {
		if err := im.readNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	slices.Sort(im.warnings)
	return errors.Join(im.faults...)
}

// readBrokers reads the configuration in force, which includes the dynamic one.
func (im *importer) readBrokers(ctx context.Context) error {
	var config map[string]string
	_, err := im.web.get(ctx, &config, "brokers", "configuration", "runtime")
	var refused rest.Error
	isRefused := errors.As(err, &refused) && refused.Code != http.StatusInternalServerError
	switch {
	case isRefused && len(im.only) > 0: // the role may be admin of these namespaces only
		im.warn("the brokers' configuration was left out: %v", err)
	case err != nil:
		return err
	case len(config) == 0: // 404: every Pulsar has this path
		return cli.Hint(
			fmt.Errorf("web %q: is not the web service of a Pulsar: it has no configuration "+
				"of brokers at /admin/v2", im.web.client.ServiceURL),
			"check --web: want http://host:port of a broker, by default port 8080, without a path",
		)
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(cmp.Or(config[name], "0"), 10, 64)
		if err != nil {
			im.faults = append(im.faults, cli.ArgError(name, config[name], "invalid number"))
		}
		return n
	}
	relative := config["dispatchThrottlingRateRelativeToPublishRate"] == "true"
	im.cluster = dispatchRate{
		number("dispatchThrottlingRatePerTopicInMsg"),
		number("dispatchThrottlingRatePerTopicInByte"), 1, relative,
	}
	im.subscriptions = dispatchRate{
		number("dispatchThrottlingRatePerSubscriptionInMsg"),
		number("dispatchThrottlingRatePerSubscriptionInByte"), 1, relative,
	}
	if im.cluster.set() {
		im.add(policy.Scope{}, im.cluster.orInherited(), dispatchRate{})
	}
	for _, name := range []string{"dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte"} {
		if n := number(name); n > 0 {
			im.warn("broker: %s %d was left out: it is for all topics of a broker; see aggregate",
				name, n)
		}
	}
	for _, unit := range []string{"Msg", "Byte"} {
		name := "dispatchThrottlingRatePerReplicatorIn" + unit
		if n := number(name); n > 0 {
			im.warn("broker: %s %d was left out: replication is not limited here", name, n)
		}
	}
	if config["dispatchThrottlingOnNonBacklogConsumerEnabled"] == "true" && im.cluster.set() {
		im.warn("broker: dispatchThrottlingOnNonBacklogConsumerEnabled was left out; to do the " +
			"same: throttle-admin set cluster caughtUp.throttle=true")
	}
	return nil
}

// add sets a scope's rates. wider is the rate that the scope would inherit.
func (im *importer) add(scope policy.Scope, r, wider dispatchRate) {
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
	p := policy.Policy{
		MessageRate: rate(r.Messages, wider.Messages, policy.ParseRate),
		ByteRate:    rate(r.Bytes, wider.Bytes, policy.ParseByteRate),
	}
	if r.Relative {
		im.warn("%s: relativeToPublishRate was left out: the rate is the limit",
			cmp.Or(scope.String(), "cluster"))
	}
	if policy.IsZero(p) {
		return
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.policies[scope] = p
}

// readNamespace reads a namespace and its topics.
func (im *importer) readNamespace(ctx context.Context, name string) error {
	var policies struct {
		Topic        map[string]dispatchRate `json:"topicDispatchRate"`
		Old          map[string]dispatchRate `json:"clusterDispatchRate"` // its former name
		Subscription map[string]dispatchRate `json:"subscriptionDispatchRate"`
		Replicator   map[string]dispatchRate `json:"replicatorDispatchRate"`
	}
	found, err := im.web.get(ctx, &policies, "namespaces", name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("namespace %s: not found", name)
	}
	scope, err := policy.ParseScope(name)
	if err != nil {
		im.warn("%s was left out, because policies cannot have its name: %v", name, err)
		return nil
	}
	if len(policies.Topic) == 0 {
		policies.Topic = policies.Old
	}
	topics, subscriptions := im.cluster, im.subscriptions // what they would inherit
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
		im.warn("%s: subscriptionDispatchRate differs between clusters; %+v was used",
			name, subscriptions)
	}
	if len(policies.Replicator) > 0 {
		im.warn("%s: replicatorDispatchRate was left out: replication is not limited here", name)
	}
	return im.readTopics(ctx, name, topics, subscriptions)
}

// readTopics reads the topics of a namespace. wider and subscriptions are the rates that they and
// their subscriptions would inherit.
func (im *importer) readTopics(
	ctx context.Context, namespace string, wider, subscriptions dispatchRate,
) error {
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
			im.warn("%s was left out, because policies cannot have its name: %v", name, err)
			continue
		}
		if !strings.HasPrefix(topic.Name, "__") { // else a topic of Pulsar itself
			local := name[strings.LastIndex(name, "/")+1:]
			if _, ok := topics[topic]; !ok {
				topics[topic] = "persistent/" + namespace + "/" + url.PathEscape(local)
			}
		}
	}
	slots, failed := make(chan struct{}, webRequests), make(chan error, len(topics))
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

// readTopic reads a topic and its subscriptions.
func (im *importer) readTopic(
	ctx context.Context, topic policy.Topic, path string, wider, subscriptions dispatchRate,
) error {
	rate := func(parts ...string) (r dispatchRate, err error) { // not found means not set
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
			im.add(policy.SubscriptionScope(topic, name), own.orInherited(), dispatchRate{})
		}
	}
	return nil
}
