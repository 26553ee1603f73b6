// Package demo holds the command that shows how two consumer groups share a limit.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/console"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newDemoCommand(a)}
}

// A demo has the values of the command's flags.
type demo struct {
	app      *cli.App
	limit    policy.Rate
	duration time.Duration
	plain    bool
	clients  bool   // kafka-go and franz-go
	console  string // address of the console; "" = none
	sharing  string // "" means the default

	// URLs of services; "" means one in this process, or for permits the etcd with the policies.
	policies, permits, kafka, pulsar string
}

// inMemory is a permit store in memory, which all replicas of the demo share.
const inMemory = "memory:"

// The consumers of the demo's topic.
const (
	lanes         = 4 // partitions of a Kafka topic
	replicas      = 2 // each has a Limiter, as if in a process of its own
	consumersEach = 2 // of each consumer group in each replica
)

var groupNames = []string{"billing", "alerts"}

// workerGroups are the worker groups of the replicas, for --sharing groups.
var workerGroups = [replicas]string{"eu", "us"}

func newDemoCommand(app *cli.App) *cobra.Command {
	d := demo{app: app}
	var limit string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show how two consumer groups share one limit; needs no services",
		Long: `Show how two consumer groups share one limit. The demo starts an etcd and a Kafka
broker in this process, fills a topic of 4 partitions with a backlog, sets a limit, and drains the
topic with two consumer groups of 4 kafka-go readers each, in 2 replicas.

A live table shows the rate, share and backlog of each consumer group, and whether and why it is
throttled. Halfway, the limit is doubled; later one consumer group has no backlog any more and is
not throttled. With --console, a browser shows it, too, at http://127.0.0.1:9400, and consumers run
for five minutes unless --duration says otherwise.

With -o json or -o yaml, the demo measures: at a constant limit, with a backlog that outlasts the
measurement, from half a second after each consumer has received messages. Messages are counted
where consumers receive them.

With --clients, one of the groups reads with franz-go: the limit is one over clients of all kinds.

With --policies, --permits or --kafka, the demo uses real services. Permits are in the etcd with
the policies, unless --permits is set, for example to memory:. The demo's topic and policy then
have unique names, and are removed at the end. With --pulsar, the topic is in a real Pulsar, and
the consumer groups are Shared subscriptions.`,
		Example: `  throttle-admin demo
  throttle-admin demo --console
  throttle-admin demo --clients
  throttle-admin demo --duration 10s -o json
  throttle-admin demo --policies etcd://127.0.0.1:2379/throttle --permits redis://127.0.0.1:6379
  throttle-admin demo --kafka 127.0.0.1:9092
  throttle-admin demo --pulsar pulsar://127.0.0.1:6650`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.parse(cmd, limit); err != nil {
				return cli.Usage(err)
			}
			run := d.measure
			if app.Output == "table" {
				run = d.show
			}
			if err := run(cmd.Context()); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&limit, "limit", "1000/s", "limit of the topic; live, it is doubled halfway")
	flags.DurationVar(&d.duration, "duration", 24*time.Second, "how long consumers run")
	flags.StringVar(&d.sharing, "sharing", "", "fair, strict, split or groups (default fair)")
	flags.StringVar(&d.console, "console", "", "show it in a browser, too: at an address of this machine")
	flags.Lookup("console").NoOptDefVal = console.Address
	flags.BoolVar(&d.plain, "plain", false, "print a line each second instead of a live table")
	flags.BoolVar(&d.clients, "clients", false, "read with franz-go, too: in one of the consumer groups")
	flags.StringVar(&d.kafka, "kafka", "", "host:port of a Kafka (default one in this process)")
	flags.StringVar(&d.pulsar, "pulsar", "", "pulsar://host:port of a Pulsar, instead of Kafka")
	return cmd
}

// parse validates the flags. It ignores the stores that the environment names: by default, the
// demo uses no services.
func (d *demo) parse(cmd *cobra.Command, limit string) (err error) {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("demo: "+format, args...))
	}
	if d.limit, err = policy.ParseRate(limit); err != nil {
		fault("--limit: %w", err)
	} else if perSecond := d.limit.PerSec(); perSecond < 100 || perSecond > 20_000 {
		fault("--limit %s: is outside 100/s..20000/s", limit)
	}
	if d.console != "" {
		if err := console.CheckAddress(d.console); err != nil {
			fault("--console %w", err)
		}
		if !cmd.Flags().Changed("duration") {
			d.duration = 5 * time.Minute
		}
		if d.app.Output != "table" {
			fault("--console: shows the live demo: want no --output")
		}
	}
	if d.duration < time.Second || d.duration > 10*time.Minute {
		fault("--duration %s: is outside 1s..10m", d.duration)
	}
	modes := []policy.SharingMode{"", policy.Fair, policy.Strict, policy.Split, policy.Groups}
	if !slices.Contains(modes, policy.SharingMode(d.sharing)) {
		fault("--sharing %q: unknown mode: want fair, strict, split or groups", d.sharing)
	}
	if err := checkPulsar(d.pulsar); err != nil {
		fault("%w", err)
	}
	if d.kafka != "" && d.pulsar != "" {
		fault("--kafka, --pulsar: want one of them")
	}
	if d.clients && d.pulsar != "" {
		fault("--clients, --pulsar: --clients are those of Kafka: want one of them")
	}
	if cmd.Flags().Changed("policies") {
		if strings.HasPrefix(d.app.PoliciesURL, "memory:") {
			fault("--policies memory: is not shared by replicas: want no --policies, or an etcd")
		} else if d.policies, err = d.app.PoliciesOptions.Add(d.app.PoliciesURL); err != nil {
			fault("policy store %w", err)
		}
	}
	if cmd.Flags().Changed("permits") {
		if strings.HasPrefix(d.app.PermitsURL, "none:") {
			fault("--permits none: has no permits to share: want no --permits, or a permit store")
		} else if d.permits, err = d.app.PermitsOptions.Add(d.app.PermitsURL); err != nil {
			fault("permit store %w", err)
		}
	}
	return errors.Join(errs...)
}

// checkPulsar validates --pulsar. It does not show a URL that may have a password.
func checkPulsar(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil
	case strings.Contains(text, "@"):
		return errors.New("--pulsar: has an @: want pulsar://host:6650")
	case err != nil, u.Scheme != "pulsar" && u.Scheme != "pulsar+ssl", u.Host == "":
		return fmt.Errorf("--pulsar %.200q: invalid URL: want pulsar://host:6650", text)
	}
	return nil
}

// A measurement is the result of demo -o json.
type measurement struct {
	Limit         float64             `json:"limit"` // messages a second
	Seconds       float64             `json:"seconds"`
	Dispatched    int                 `json:"dispatched"` // messages received in Seconds
	Rate          float64             `json:"rate"`       // messages a second
	MaxWindow     int                 `json:"maxWindow"`  // most messages in any one second
	Subscriptions []subscriptionShare `json:"subscriptions"`

	RequestsPerMessage float64 `json:"requestsPerMessage"`
}

type subscriptionShare struct {
	Name       string  `json:"name"`
	Dispatched int     `json:"dispatched"`
	Share      float64 `json:"share"` // of all messages
}

// settle is how long consumers run before the measurement: the first allocations are small.
const settle = 500 * time.Millisecond

// measure measures at a constant limit and prints the result.
func (d *demo) measure(ctx context.Context) (err error) {
	perSecond := d.limit.PerSec()
	// More than one group alone could drain:
	backlog := int(perSecond * (d.duration + joinTimeout).Seconds())
	w, err := d.openWorld(ctx, backlog, nil)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err == nil {
		_, err = w.setRate(ctx, d.limit)
	}
	if err != nil {
		return err
	}
	f, err := openFleet(ctx, w)
	defer func() { err = errors.Join(err, f.Close()) }()
	if err == nil {
		err = f.join(ctx)
	}
	if err == nil {
		err = f.flow(ctx, settle)
	}
	if err != nil {
		return err
	}
	start, requests := time.Now(), f.requests()
	if err = f.flow(ctx, d.duration); err != nil {
		return err
	}
	end, requests := time.Now(), f.requests()-requests
	m := measurement{Limit: perSecond, Seconds: round3(end.Sub(start).Seconds())}
	for _, g := range f.groups {
		if f.state(g).exempt > 0 {
			return fmt.Errorf("%s caught up before the end: nothing was measured", g.name)
		}
		n := f.count(start, end, g)
		m.Subscriptions = append(m.Subscriptions, subscriptionShare{Name: g.name, Dispatched: n})
		m.Dispatched += n
	}
	for i := range m.Subscriptions {
		s := &m.Subscriptions[i]
		s.Share = round3(float64(s.Dispatched) / float64(m.Dispatched))
	}
	m.Rate = round3(float64(m.Dispatched) / end.Sub(start).Seconds())
	m.MaxWindow = f.maxWindow(time.Time{}, end)
	m.RequestsPerMessage = float64(requests) / float64(m.Dispatched)
	return d.app.Print(m, nil)
}
