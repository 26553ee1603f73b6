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

// A quotaChange is what is other from a second on; a quota of null is none.
type quotaChange struct {
	At       int
	Quotas   map[quota.ID]*quota.Quota
	Rates    map[quota.ID]float64 // of all clients with that id
	Capacity map[string]float64   // of backends
}

// A quotaSecond is what is printed of a second.
type quotaSecond struct {
	Time    int             `json:"time"`
	Loads   []float64       `json:"loads"` // of the backends, their capacity being 1
	Clients []quotaDecision `json:"ids"`
}

// A quotaDecision is an id's in a second. What there is none of is missing.
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
		Short: "Run throughput quotas on made-up clients and backends",
		Long: `Run throughput quotas on made-up clients and backends, in virtual time. FILE is YAML:

  seconds: 60
  quotas:
    "tag:reports": {total: 409600}          # cost a second: pages of 4096 bytes, writes times 4
    "tenant:shop": {total: 409600, reserved: 204800}
  backends:
    - {name: one, capacity: 204800}         # cost a second; zone is its name if it has none
    - {name: two, capacity: 204800}
  clients:
    - {id: "tag:reports", rate: 20, read: 24576}                  # requests a second, bytes of each
    - {id: "tenant:shop", rate: 10, write: 4096, backends: [two]}
  changes:
    - {at: 30, capacity: {two: 409600}}     # also quotas, and rates
  shareBy: quota                            # or current
  ignoreZones: 1                            # the worst zones, whose trouble is their own`,
		Example: `  throttle-admin simulate quota scenario.yaml
  throttle-admin simulate quota scenario.yaml --plot scenario.svg -o json`,
		Args: cli.Args("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 1 {
				return cli.Usage(fmt.Errorf("--every %d: is no number of seconds from 1 on", every))
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
			if err := writePlot(plot, func() []byte { return plotQuota(name, seconds) }); err != nil {
				return err
			}
			return a.Print(seconds, func(w *strings.Builder) { writeQuotaSeconds(w, seconds, every) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&every, "every", 5, "seconds from row to row of the table")
	flags.StringVar(&plot, "plot", "", "also draw it, into this SVG file")
	return cmd
}

// What bounds a simulation: seconds, and figures that are kept of it.
const (
	mostSeconds = 86_400
	mostFigures = 2_000_000
)

// simulation is what a scenario begins with, and all that is wrong with the scenario.
func (s *quotaScenario) simulation() (*quota.Simulation, error) {
	simulation := &quota.Simulation{Quotas: map[quota.ID]quota.Quota{}, Backends: s.Backends, Clients: s.Clients}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(s.Quotas)) {
		if _, err := quotastate.ParseID(string(id)); err != nil {
			errs = append(errs, fmt.Errorf("quotas: %w", err))
		}
		if q := s.Quotas[id]; q == nil {
			errs = append(errs, fmt.Errorf("quotas: %s: is empty: say total, or leave it out", id))
		} else {
			simulation.Quotas[id] = *q
		}
	}
	errs = append(errs, simulation.Validate())
	if s.Seconds < 1 || s.Seconds > mostSeconds {
		errs = append(errs, fmt.Errorf("seconds %d: is outside 1..%d", s.Seconds, mostSeconds))
	} else if figures := s.Seconds * (len(s.Clients) + len(s.Backends)); figures > mostFigures {
		errs = append(errs, fmt.Errorf("seconds %d: of so many clients and backends, %d figures: at most %d", s.Seconds, figures, mostFigures))
	}
	if !slices.Contains([]quota.ShareBy{"", quota.ByQuota, quota.ByCurrent}, s.ShareBy) {
		errs = append(errs, fmt.Errorf("shareBy %q: is neither quota nor current", s.ShareBy))
	}
	if s.IgnoreZones != nil && *s.IgnoreZones < 0 {
		errs = append(errs, fmt.Errorf("ignoreZones %d: is no number from 0 on", *s.IgnoreZones))
	}
	for i, c := range s.Changes {
		if c.At < 1 || c.At > s.Seconds {
			errs = append(errs, fmt.Errorf("changes[%d].at %d: is outside 1..%d", i, c.At, s.Seconds))
		}
		for _, id := range slices.Sorted(maps.Keys(c.Quotas)) {
			if q := c.Quotas[id]; q != nil && q.Validate() != nil {
				errs = append(errs, fmt.Errorf("changes[%d].quotas: %s: %w", i, id, q.Validate()))
			}
		}
		for _, id := range slices.Sorted(maps.Keys(c.Rates)) {
			if rate := c.Rates[id]; !(rate >= 0) || math.IsInf(rate, 1) {
				errs = append(errs, fmt.Errorf("changes[%d].rates: %s: %v is no number from 0 on", i, id, rate))
			}
			if !slices.ContainsFunc(s.Clients, func(c quota.Client) bool { return c.ID == id }) {
				errs = append(errs, fmt.Errorf("changes[%d].rates: %s: is no client", i, id))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.Capacity)) {
			if v := c.Capacity[name]; !(v > 0) || math.IsInf(v, 1) {
				errs = append(errs, fmt.Errorf("changes[%d].capacity: %s: %v is no cost a second above 0", i, name, v))
			}
			if !slices.ContainsFunc(s.Backends, func(b quota.SimulatedBackend) bool { return b.Name == name }) {
				errs = append(errs, fmt.Errorf("changes[%d].capacity: %s: is no backend", i, name))
			}
		}
	}
	return simulation, errors.Join(errs...)
}

// change makes the changes of a second.
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

// run checks a scenario, and runs it.
func (s *quotaScenario) run(ctx context.Context) (seconds []quotaSecond, err error) {
	simulation, err := s.simulation()
	if err != nil {
		return nil, err
	}
	k := quota.Keeper{ShareBy: s.ShareBy}
	if s.IgnoreZones != nil {
		if k.IgnoreZones = *s.IgnoreZones; k.IgnoreZones == 0 {
			k.IgnoreZones = -1 // none
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
			d.Desired, d.Limiting, d.Target, d.InForce = known(found.Desired), known(found.Limiting), known(found.Target), known(found.Smoothed)
		}
		second.Clients = append(second.Clients, d)
	}
	return second
}

// known is nil for what there is none of, which JSON cannot say.
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
				fmt.Sprint(s.Time), string(c.ID), fmt.Sprintf("%.2f", c.Sent), fmt.Sprintf("%.0f", c.AverageCost),
				fmt.Sprintf("%.2f", c.Reserved), show(c.Desired), show(c.Limiting), show(c.Target), show(c.InForce), fmt.Sprintf("%.0f %%", 100*load),
			})
		}
	}
	output.Table(w, []string{"SECOND", "ID", "SENT/S", "COST", "RESERVED", "DESIRED", "LIMITING", "TARGET", "IN FORCE", "LOAD"}, rows)
}

// plotQuota draws what was sent, and how loaded the backends were.
func plotQuota(name string, seconds []quotaSecond) []byte {
	sent := panel{title: "sent, requests a second"}
	allowed := panel{title: "in force, requests a second"}
	for _, s := range seconds {
		for i, c := range s.Clients {
			if i == len(sent.lines) {
				sent.lines = append(sent.lines, line{name: string(c.ID)})
				allowed.lines = append(allowed.lines, line{name: string(c.ID)})
			}
			sent.lines[i].points = append(sent.lines[i].points, point{float64(s.Time), c.Sent})
			if c.InForce != nil {
				allowed.lines[i].points = append(allowed.lines[i].points, point{float64(s.Time), *c.InForce})
			}
		}
	}
	return drawChart(name, "seconds", "", sent, allowed)
}
