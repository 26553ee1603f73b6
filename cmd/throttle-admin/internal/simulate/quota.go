package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// A quotaScenario is a file for `simulate quota`.
type quotaScenario struct {
	Seconds     int
	ShareBy     quota.ShareBy `yaml:"shareBy"`     // default quota
	IgnoreZones *int          `yaml:"ignoreZones"` // default 1
	Quotas      map[quota.ID]*quota.Quota
	Backends    []quota.SimulatedBackend
	Clients     []quota.Client
	Changes     []quotaChange
}

// A quotaChange is a change from a second on; a quota of null is removed.
type quotaChange struct {
	At       int
	Quotas   map[quota.ID]*quota.Quota
	Rates    map[quota.ID]float64 // of all clients with the id
	Capacity map[string]float64   // of backends
}

// A quotaSecond is the result of one second.
type quotaSecond struct {
	Time    int             `json:"time"`
	Loads   []float64       `json:"loads"` // of the backends, as parts of their capacities
	Clients []quotaDecision `json:"ids"`
}

// A quotaDecision is the decision for an id in a second. Unknown values are omitted.
type quotaDecision struct {
	ID          quota.ID `json:"id"`
	Sent        float64  `json:"sent"` // requests
	AverageCost float64  `json:"averageCost,omitempty"`
	Reserved    float64  `json:"reserved,omitempty"`
	Desired     *float64 `json:"desired,omitempty"`
	Limiting    *float64 `json:"limiting,omitempty"`
	Target      *float64 `json:"target,omitempty"`
	InForce     *float64 `json:"inForce,omitempty"` // in the next second
}

func newSimulateQuotaCommand(a *cli.App) *cobra.Command {
	var plot string
	var every int
	cmd := &cobra.Command{
		Use:   "quota FILE",
		Short: "Simulate throughput quotas",
		Long: `Simulate throughput quotas with synthetic clients and backends, in virtual time.
FILE is YAML:

  seconds: 60
  quotas:
    "tag:reports": {total: 409600}          # cost a second: pages of 4096 bytes, times 4 for writes
    "tenant:shop": {total: 409600, reserved: 204800}
  backends:
    - {name: one, capacity: 204800}         # cost a second; zone defaults to the name
    - {name: two, capacity: 204800}
  clients:
    - {id: "tag:reports", rate: 20, read: 24576}                  # requests a second, bytes of each
    - {id: "tenant:shop", rate: 10, write: 4096, backends: [two]}
  changes:
    - {at: 30, capacity: {two: 409600}}     # also quotas and rates
  shareBy: quota                            # or current
  ignoreZones: 1                            # how many of the worst zones are ignored`,
		Example: `  throttle-admin simulate quota scenario.yaml
  throttle-admin simulate quota scenario.yaml --plot scenario.svg -o json`,
		Args: cli.Args("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 1 {
				return cli.Usage(fmt.Errorf("--every %d: invalid number: want 1 or more", every))
			}
			var s quotaScenario
			name, err := readScenario(a, args[0], &s)
			if err != nil {
				return err
			}
			seconds, err := s.run(cmd.Context())
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			draw := func() []byte { return plotQuota(name, seconds) }
			if err := writePlot(plot, draw); err != nil {
				return err
			}
			return a.Print(seconds, func(w *strings.Builder) {
				writeQuotaSeconds(w, seconds, every)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&every, "every", 5, "seconds between two rows of the table")
	flags.StringVar(&plot, "plot", "", "SVG file to draw the result into")
	return cmd
}

// Bounds of a simulation.
const (
	maxSeconds = 86_400
	maxResults = 2_000_000 // seconds times clients and backends
)

// simulation validates a scenario and returns its start.
func (s *quotaScenario) simulation() (*quota.Simulation, error) {
	simulation := &quota.Simulation{
		Quotas: map[quota.ID]quota.Quota{}, Backends: s.Backends, Clients: s.Clients,
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, id := range slices.Sorted(maps.Keys(s.Quotas)) {
		if _, err := quotastate.ParseID(string(id)); err != nil {
			fault("quotas: %w", err)
		}
		if q := s.Quotas[id]; q == nil {
			fault("quotas: %s: is empty: want total", id)
		} else {
			simulation.Quotas[id] = *q
		}
	}
	errs = append(errs, simulation.Validate())
	if s.Seconds < 1 || s.Seconds > maxSeconds {
		fault("seconds %d: is outside 1..%d", s.Seconds, maxSeconds)
	} else if results := s.Seconds * (len(s.Clients) + len(s.Backends)); results > maxResults {
		fault("seconds %d: times clients and backends is %d: want at most %d",
			s.Seconds, results, maxResults)
	}
	if !slices.Contains([]quota.ShareBy{"", quota.ByQuota, quota.ByCurrent}, s.ShareBy) {
		fault("shareBy %q: unknown value: want quota or current", s.ShareBy)
	}
	if s.IgnoreZones != nil && *s.IgnoreZones < 0 {
		fault("ignoreZones %d: is negative: want 0 or more", *s.IgnoreZones)
	}
	for i, c := range s.Changes {
		errs = append(errs, s.checkChange(i, c))
	}
	return simulation, errors.Join(errs...)
}

// checkChange validates change i of the scenario.
func (s *quotaScenario) checkChange(i int, c quotaChange) error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("changes[%d].%w", i, fmt.Errorf(format, args...)))
	}
	if c.At < 1 || c.At > s.Seconds {
		fault("at %d: is outside 1..%d", c.At, s.Seconds)
	}
	for _, id := range slices.Sorted(maps.Keys(c.Quotas)) {
		if q := c.Quotas[id]; q != nil && q.Validate() != nil {
			fault("quotas: %s: %w", id, q.Validate())
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.Rates)) {
		if rate := c.Rates[id]; !(rate >= 0) || math.IsInf(rate, 1) {
			fault("rates: %s: invalid rate %v: want 0 or more", id, rate)
		}
		if !slices.ContainsFunc(s.Clients, func(c quota.Client) bool { return c.ID == id }) {
			fault("rates: %s: unknown client", id)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Capacity)) {
		if v := c.Capacity[name]; !(v > 0) || math.IsInf(v, 1) {
			fault("capacity: %s: invalid capacity %v: want more than 0", name, v)
		}
		named := func(b quota.SimulatedBackend) bool { return b.Name == name }
		if !slices.ContainsFunc(s.Backends, named) {
			fault("capacity: %s: unknown backend", name)
		}
	}
	return errors.Join(errs...)
}

// change applies the changes of a second.
func (s *quotaScenario) change(simulation *quota.Simulation, second int) {
	for _, c := range s.Changes {
		if c.At != second {
			continue
		}
		for id, q := range c.Quotas {
			if q == nil {
				delete(simulation.Quotas, id)
			} else {
				simulation.Quotas[id] = *q
			}
		}
		for i := range simulation.Clients {
			if rate, ok := c.Rates[simulation.Clients[i].ID]; ok {
				simulation.Clients[i].Rate = rate
			}
		}
		for i := range simulation.Backends {
			if v, ok := c.Capacity[simulation.Backends[i].Name]; ok {
				simulation.Backends[i].Capacity = v
			}
		}
	}
}

// run validates a scenario and runs it.
func (s *quotaScenario) run(ctx context.Context) (seconds []quotaSecond, err error) {
	simulation, err := s.simulation()
	if err != nil {
		return nil, err
	}
	k := quota.Keeper{ShareBy: s.ShareBy}
	if s.IgnoreZones != nil {
		if k.IgnoreZones = *s.IgnoreZones; k.IgnoreZones == 0 {
			k.IgnoreZones = -1 // 0 means the default
		}
	}
	for t := 1; t <= s.Seconds; t++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.change(simulation, t)
		step, err := simulation.Step(&k)
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, secondOf(t, step))
	}
	return seconds, nil
}

func secondOf(t int, step quota.Step) quotaSecond {
	second := quotaSecond{Time: t, Loads: step.Load}
	decisions := map[quota.ID]quota.Decision{}
	for _, d := range step.Decisions {
		decisions[d.ID] = d
	}
	for _, id := range slices.Sorted(maps.Keys(step.Sent)) {
		d := quotaDecision{ID: id, Sent: step.Sent[id]}
		if found, ok := decisions[id]; ok {
			d.AverageCost, d.Reserved = found.AverageCost, found.Reserved
			d.Desired, d.Limiting = known(found.Desired), known(found.Limiting)
			d.Target, d.InForce = known(found.Target), known(found.Smoothed)
		}
		second.Clients = append(second.Clients, d)
	}
	return second
}

// known returns nil for NaN, which JSON does not have.
func known(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

func writeQuotaSeconds(w *strings.Builder, seconds []quotaSecond, every int) {
	show := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.2f", *v)
	}
	var rows [][]string
	for i, s := range seconds {
		if i%every != 0 && i != len(seconds)-1 {
			continue
		}
		load := slices.Max(s.Loads)
		for _, c := range s.Clients {
			rows = append(rows, []string{
				fmt.Sprint(s.Time), string(c.ID), fmt.Sprintf("%.2f", c.Sent),
				fmt.Sprintf("%.0f", c.AverageCost),
				fmt.Sprintf("%.2f", c.Reserved), show(c.Desired), show(c.Limiting), show(c.Target),
				show(c.InForce), fmt.Sprintf("%.0f %%", 100*load),
			})
		}
	}
	output.Table(w, []string{
		"SECOND", "ID", "SENT/S", "COST", "RESERVED", "DESIRED", "LIMITING", "TARGET", "IN FORCE",
		"LOAD",
	}, rows)
}

// plotQuota draws the requests sent and the rates in force.
func plotQuota(name string, seconds []quotaSecond) []byte {
	sent := panel{title: "sent, requests a second"}
	allowed := panel{title: "in force, requests a second"}
	for _, s := range seconds {
		for i, c := range s.Clients {
			if i == len(sent.lines) {
				sent.lines = append(sent.lines, line{name: string(c.ID)})
				allowed.lines = append(allowed.lines, line{name: string(c.ID)})
			}
			sent.lines[i].add(s.Time, c.Sent)
			if c.InForce != nil {
				allowed.lines[i].add(s.Time, *c.InForce)
			}
		}
	}
	return drawChart(name, "seconds", "", sent, allowed)
}
