// Package demo has the command that shows two consumer groups share a limit.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newDemoCommand(a)}
}

// A demo is what the flags of the command ask for.
type demo struct {
	app      *cli.App
	limit    policy.Rate
	duration time.Duration
	plain    bool
	sharing  string // "" = the default

	store, permits, kafka, pulsar string // "" = in this process; of the permit store: where the policies are
}

const inMemory = "memory:" // the permit store of one process, which all of the demo's then share

// What the demo drains its topic with.
const (
	demoLanes     = 4 // partitions of a Kafka topic
	demoProcesses = 2 // Limiters, each as if in a process of its own
	demoReaders   = 2 // of each group in each process
)

var demoGroups = []string{"billing", "alerts"}

// demoWorkers are the groups that the processes are in, for --sharing groups.
var demoWorkers = [demoProcesses]string{"eu", "us"}

func newDemoCommand(app *cli.App) *cobra.Command {
	d := demo{app: app}
	var limit string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See two consumer groups share one limit; needs nothing but this program",
		Long: `Start an etcd and a Kafka broker in this process, fill a topic of 4 partitions with a backlog, set a
limit, and drain the topic with two consumer groups of 4 kafka-go readers each, as if in 2 processes.

A live table shows the rate, share and backlog of each group, and why it waits or does not. Half-way the
limit is doubled; then one group catches up with its producer and is let through.

With -o json or -o yaml the demo is a measurement: one constant limit, a backlog that outlasts it, the
clock started half a second after every reader had messages. Figures are counted where the readers receive.

--policies, --permits and --kafka put real services in the place of those in this process; an etcd has the
policies and the permits unless --permits says otherwise, such as --permits memory:. The demo then
makes a topic and a policy with a name of their own, and removes both at the end.

With --pulsar the topic is one of a real Pulsar, and the groups are Shared subscriptions.`,
		Example: `  throttle-admin demo
  throttle-admin demo --duration 10s -o json
  throttle-admin demo --policies etcd://127.0.0.1:2379/throttle --permits redis://127.0.0.1:6379 --kafka 127.0.0.1:9092
  throttle-admin demo --pulsar pulsar://127.0.0.1:6650`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var errs []error
			fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("demo: "+format, args...)) }
			if d.limit, err = policy.ParseRate(limit); err != nil {
				fault("--limit: %w", err)
			} else if perSecond := d.limit.PerSec(); perSecond < 100 || perSecond > 20_000 {
				fault("--limit %s: is outside 100/s..20000/s", limit)
			}
			if u, err := url.Parse(d.pulsar); strings.Contains(d.pulsar, "@") {
				fault("--pulsar: has an @: write pulsar://host:6650")
			} else if d.pulsar != "" && (err != nil || u.Scheme != "pulsar" && u.Scheme != "pulsar+ssl" || u.Host == "") {
				fault("--pulsar %.200q: is no broker: write pulsar://host:6650", d.pulsar)
			}
			if d.kafka != "" && d.pulsar != "" {
				fault("--kafka and --pulsar: choose one")
			}
			if s := policy.Sharing(d.sharing); s != "" && s != policy.Fair && s != policy.Strict && s != policy.Split && s != policy.Groups {
				fault("--sharing %q: is unknown: use allocated, strict, split or groups", d.sharing)
			}
			if d.duration < time.Second || d.duration > 10*time.Minute {
				fault("--duration %s: is outside 1s..10m", d.duration)
			}
			// What the environment says is for the other commands: the demo needs nothing.
			if cmd.Flags().Changed("policies") {
				if strings.HasPrefix(app.PoliciesURL, "memory:") {
					fault("--policies memory: is each process's own: leave it out to have an etcd here")
				} else if d.store, err = app.PoliciesOptions.Add(app.PoliciesURL); err != nil {
					fault("store %w", err)
				}
			}
			if cmd.Flags().Changed("permits") && strings.HasPrefix(app.PermitsURL, "none:") {
				fault("--permits none: allocates nothing: leave it out to have permits in an etcd here")
			} else if cmd.Flags().Changed("permits") && app.PermitsURL == inMemory {
				d.permits = inMemory
			} else if cmd.Flags().Changed("permits") {
				if d.permits, err = app.PermitsOptions.Add(app.PermitsURL); err != nil {
					fault("permit store %w", err)
				}
			}
			if err = errors.Join(errs...); err != nil {
				return cli.Usage(err)
			}
			run := d.measure
			if app.Output == "table" {
				run = d.show
			}
			if err = run(cmd.Context()); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&limit, "limit", "1000/s", "the topic's limit, doubled half-way in the live demo")
	cmd.Flags().DurationVar(&d.duration, "duration", 24*time.Second, "how long messages flow")
	cmd.Flags().StringVar(&d.sharing, "sharing", "", "how the limit is shared: allocated, strict, split or groups (default allocated)")
	cmd.Flags().BoolVar(&d.plain, "plain", false, "a line a second in place of a table that is redrawn")
	cmd.Flags().StringVar(&d.kafka, "kafka", "", "host:port of a Kafka broker (default one in this process)")
	cmd.Flags().StringVar(&d.pulsar, "pulsar", "", "pulsar://host:port of a Pulsar, in place of Kafka")
	return cmd
}

// A measurement is what demo -o json prints.
type measurement struct {
	Limit         float64             `json:"limit"` // messages a second
	Seconds       float64             `json:"seconds"`
	Dispatched    int                 `json:"dispatched"` // messages that the readers received in that time
	Rate          float64             `json:"rate"`       // messages a second
	MaxWindow     int                 `json:"maxWindow"`  // most messages in any sliding second, from the very first on
	Subscriptions []subscriptionShare `json:"subscriptions"`

	RequestsPerMessage float64 `json:"requestsPerMessage"`
}

type subscriptionShare struct {
	Name       string  `json:"name"`
	Dispatched int     `json:"dispatched"`
	Share      float64 `json:"share"` // of all that were dispatched
}

// settle is how long messages flow before the clock starts: the first allocations are small.
const settle = 500 * time.Millisecond

// measure runs at one limit and prints a measurement.
func (d *demo) measure(ctx context.Context) (err error) {
	perSecond := d.limit.PerSec()
	backlog := int(perSecond * (d.duration + joinTimeout).Seconds()) // one group alone could not drain it
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
			return fmt.Errorf("%s has caught up before the end: nothing was measured", g.name)
		}
		m.Subscriptions = append(m.Subscriptions, subscriptionShare{Name: g.name, Dispatched: f.count(start, end, g)})
		m.Dispatched += m.Subscriptions[len(m.Subscriptions)-1].Dispatched
	}
	for i := range m.Subscriptions {
		m.Subscriptions[i].Share = round3(float64(m.Subscriptions[i].Dispatched) / float64(m.Dispatched))
	}
	m.Rate = round3(float64(m.Dispatched) / end.Sub(start).Seconds())
	m.MaxWindow = f.maxWindow(time.Time{}, end)
	m.RequestsPerMessage = float64(requests) / float64(m.Dispatched)
	return d.app.Print(m, nil)
}
