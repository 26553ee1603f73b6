// Package ratekeeper finds the rates of throughput quotas: of any number of processes the elected one adds up, once a second, what all
// replicas report, decides by dispatch/quota, and writes the rates into the permit store, where the replicas read them.
//
//	keeper := &ratekeeper.Ratekeeper{Policies: source, Permit store: permit store, Elector: store}
//	err := keeper.Run(ctx) // until ctx ends
//
// throttle.WithRatekeeper runs one in a process that has a Limiter, and `throttle-admin ratekeeper` runs one alone.
package ratekeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Elector elects one of several processes.
type Elector interface {
	// Elect calls lead whenever the candidate is elected, with a context that ends with its term, and the term's number, which is
	// higher than all before. It returns when ctx ends, and otherwise the error for which it cannot go on now.
	Elect(ctx context.Context, election, candidate string, lead func(ctx context.Context, term int64)) error
}

// byLedger elects through the record of rates: who finds that nobody has confirmed it for a while begins the next term. Of two who do so at
// once, the first to write leads.
type byPermits struct{ *Ratekeeper }

func (l byPermits) Elect(ctx context.Context, _, _ string, lead func(context.Context, int64)) error {
	text, now, err := l.Permits.Value(ctx, permits.RatesKey(l.Cluster))
	if err != nil {
		return err
	}
	var before dispatch.Rates
	_ = json.Unmarshal(text, &before) // what makes no sense is nobody's
	if math.Abs(now-before.Time) > takeover.Seconds() || before.Time == 0 {
		lead(ctx, max(before.Term+1, int64(now*1000))) // by the clock, lest terms begin anew when the record has gone
	}
	return nil
}

// takeover is after how long a silence another leads; so long a leader may fail to find rates.
const takeover = 5 * time.Second

// Every is how often rates are found.
const Every = time.Second

// ratesTTL is how long the permit store keeps the rates that nobody confirms: who comes next goes on from them.
const ratesTTL = time.Hour

// statusTTL is how long what a leader says of itself counts.
const statusTTL = 3 * time.Second

// A Ratekeeper is one candidate. Set the fields before Run; Policies and Permit store are needed.
type Ratekeeper struct {
	Policies dispatch.PolicySource
	Permits  dispatch.PermitStore
	Elector  Elector      // default: who finds rates in the permit store that nobody has confirmed for 5 s
	Cluster  string       // default "standalone"
	Name     string       // of the candidate, nobody else's; default host name, process id and a random part
	Logger   *slog.Logger // of each decision, an event with all its inputs; nil: silent
	MostIDs  int          // of a backend's report: the costliest are followed, and all that have a quota; default 1000

	mu       sync.Mutex // guards the fields below
	snapshot policy.Snapshot
	status   Status
	reports  map[string]*keptReport // over HTTP, the newest of each backend
}

// A Status is what a ratekeeper says of itself and of what it has decided last.
type Status struct {
	Keeper    string           `json:"keeper"`
	Term      int64            `json:"term"`
	Time      float64          `json:"time"`              // on the permit store's clock, seconds
	Replicas  int              `json:"replicas"`          // that report, backends over HTTP included
	Tracked   int              `json:"tracked"`           // ids of which something is known
	LeftOut   int              `json:"leftOut,omitempty"` // ids of backends' reports that are not followed: their cost counts as load of others
	Refused   []string         `json:"refused,omitempty"` // faults of reports
	Decisions []quota.Decision `json:"decisions"`
	Readers   []quota.Reader   `json:"readers,omitempty"` // of busy backends
}

// StatusOf is the name under which ratekeepers publish their [Status], in place of a cluster's.
func StatusOf(cluster string) string { return cluster + "/ratekeeper" }

// Run is a candidate until ctx ends, and then returns nil. Its error is a fault of the fields. What goes wrong later is logged, and tried again.
func (r *Ratekeeper) Run(ctx context.Context) error {
	if r.Policies == nil || r.Permits == nil {
		return errors.New("ratekeeper: Policies and Permit store are both needed")
	}
	if r.MostIDs < 0 {
		return fmt.Errorf("ratekeeper: MostIDs %d: is invalid: want 1 or more, or 0 for the default", r.MostIDs)
	}
	host, _ := os.Hostname() // an empty one is fine
	r.Cluster, r.Name = cmp.Or(r.Cluster, "standalone"), cmp.Or(r.Name, fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), rand.Uint32N(1<<16)))
	if r.Elector == nil {
		r.Elector = byPermits{r}
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	var following sync.WaitGroup
	known := make(chan struct{})
	following.Go(func() { r.follow(ctx, known) })
	defer following.Wait()
	select { // who has no policies is no candidate
	case <-known:
	case <-ctx.Done():
	}
	for failed := ""; ctx.Err() == nil; {
		err := r.Elector.Elect(ctx, r.Cluster, r.Name, r.lead)
		if err != nil && ctx.Err() == nil && err.Error() != failed {
			failed = err.Error()
			r.Logger.Warn("nobody can be elected as ratekeeper; it is tried again", "error", err)
		} else if err == nil {
			failed = ""
		}
		sleep(ctx, Every)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// follow keeps the policies as they are now, and closes known when it has some.
func (r *Ratekeeper) follow(ctx context.Context, known chan<- struct{}) {
	for s, err := range r.Policies.Snapshots(ctx) {
		if err != nil {
			r.Logger.Warn("policies cannot be read; the last quotas stay in force", "error", err)
			continue
		}
		r.mu.Lock()
		if r.snapshot.Set == nil {
			close(known)
		}
		r.snapshot = s
		r.mu.Unlock()
	}
}

// policies returns the last snapshot; its Set is nil while there is none.
func (r *Ratekeeper) policies() policy.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot
}

// Status returns what was decided last; Term is 0 while this candidate does not lead.
func (r *Ratekeeper) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// A term is a time for which this candidate leads.
type term struct {
	*Ratekeeper
	number  int64
	keeper  quota.Keeper
	start   time.Time
	set     *policy.Set // whose quotas the keeper has
	quotas  map[quota.ID]policy.Quota
	resumed bool           // before has been read
	before  dispatch.Rates // what the ratekeeper before has found
	wrote   bool
	events  map[quota.ID]float64 // the rates last logged
	fault   string               // of a pass, last logged
	refused string               // reports, last logged
	sound   time.Time            // the last pass that did not fail
}

// lead finds rates while ctx lasts, unless somebody else leads in a later term.
func (r *Ratekeeper) lead(ctx context.Context, number int64) {
	t := &term{Ratekeeper: r, number: number, start: time.Now(), sound: time.Now(), events: map[quota.ID]float64{}}
	t.keeper.MostIDs = r.MostIDs
	r.Logger.Info("leads as ratekeeper", "name", r.Name, "cluster", r.Cluster, "term", number)
	defer func() {
		r.mu.Lock()
		r.status = Status{}
		r.mu.Unlock()
		r.Logger.Info("leads no more", "name", r.Name, "term", number)
	}()
	for ; ctx.Err() == nil; sleep(ctx, Every) {
		err := t.resume(ctx)
		if err == nil {
			err = t.pass(ctx)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errFenced):
			r.Logger.Warn("another ratekeeper leads in a later term", "term", number)
			return
		case err != nil && err.Error() != t.fault:
			t.fault = err.Error()
			r.Logger.Warn("rates cannot be found; the last ones hold for a while", "error", err)
		case err == nil:
			t.fault, t.sound = "", time.Now()
		}
		if time.Since(t.sound) > takeover { // another may reach what this one cannot
			return
		}
	}
}

var errFenced = errors.New("ratekeeper: a later term has begun")

// now is the keeper's clock.
func (t *term) now() float64 { return 1 + time.Since(t.start).Seconds() }

// resume reads what the ratekeeper before has found, once.
func (t *term) resume(ctx context.Context) error {
	if t.resumed {
		return nil
	}
	text, _, err := t.Permits.Value(ctx, permits.RatesKey(t.Cluster))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &t.before); len(text) > 0 && err != nil {
		t.Logger.Warn("the rates of the ratekeeper before make no sense; they are found anew", "error", err)
	}
	t.resumed = true
	return nil
}

// pass finds all rates, and puts them in force.
func (t *term) pass(ctx context.Context) error {
	now := t.now()
	snapshot := t.policies()
	if err := t.adopt(snapshot.Set, now); err != nil {
		return err
	}
	texts, err := t.Permits.Published(ctx, permits.UsageOf(t.Cluster))
	if err != nil {
		return err
	}
	status := Status{Keeper: t.Name, Term: t.number}
	usages, refused := parse(texts)
	status.Replicas, status.Refused = len(usages), append(refused, t.hear(usages, now)...)
	status.Decisions, status.Readers = t.keeper.Decide(now), t.keeper.Readers(now)
	t.complete(status.Decisions)
	status.Tracked, status.LeftOut = t.keeper.Tracked(), t.keeper.LeftOut()
	if status.Time, err = t.write(ctx, snapshot.Identity, status.Decisions); err != nil {
		return err
	}
	t.say(status)
	t.mu.Lock()
	t.status = status
	t.mu.Unlock()
	status.Decisions = status.Decisions[:min(len(status.Decisions), mostShown)]
	text, err := json.Marshal(status)
	if err == nil {
		err = t.Permits.Publish(ctx, StatusOf(t.Cluster), t.Name, text, statusTTL)
	}
	if err != nil && ctx.Err() == nil {
		t.Logger.Debug("what was decided could not be published", "error", err)
	}
	return nil
}

// mostShown bounds the decisions that are published for people to look at, so that any permit store takes them.
const mostShown = 3000

// complete says of decisions what replicas do with them: the rate of an id whose costs nobody knows is what they assume, and one in shadow
// limits nothing.
func (t *term) complete(decisions []quota.Decision) {
	for i := range decisions {
		d := &decisions[i]
		if d.Shadow = t.quotas[d.ID].Shadow; d.Assumed {
			d.AverageCost = dispatch.AssumedCost
			d.Reserved, d.Desired = d.Quota.Reserved/d.AverageCost, d.Quota.Total/d.AverageCost
			d.Target, d.Smoothed = d.Desired, d.Desired
		}
	}
}

// adopt takes over what the policies say of quotas, if that is new.
func (t *term) adopt(set *policy.Set, now float64) error {
	if set == t.set {
		return nil
	}
	how := set.Ratekeeping()
	t.keeper.ShareBy, t.keeper.Zones = quota.ShareBy(how.ShareBy), how.Zones
	if t.keeper.IgnoreZones = how.IgnoreZones; how.IgnoreZones == 0 {
		t.keeper.IgnoreZones = -1
	}
	quotas := map[quota.ID]quota.Quota{}
	t.quotas = map[quota.ID]policy.Quota{}
	for id, q := range set.Quotas() {
		name := quota.ID(id.String())
		t.quotas[name] = q
		quotas[name] = quota.Quota{Reserved: float64(q.Reserved), Total: float64(q.Total)}
	}
	if err := t.keeper.SetQuotas(quotas, now); err != nil {
		return err
	}
	for id, r := range t.before.Rates {
		t.keeper.Resume(id, r.Average, r.Rate, now)
	}
	t.set, t.before.Rates = set, nil
	return nil
}

// parse reads what replicas have published, and of what several processes keep of one backend the newest.
func parse(texts [][]byte) (usages []dispatch.Usage, faults []string) {
	for _, text := range texts {
		var u dispatch.Usage
		if err := json.Unmarshal(text, &u); err != nil {
			faults = append(faults, fmt.Sprintf("a usage record makes no sense: %v", err))
			continue
		}
		usages = append(usages, u)
	}
	slices.SortFunc(usages, func(a, b dispatch.Usage) int { // so that sums come out alike
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(timeOf(b), timeOf(a)))
	})
	return slices.CompactFunc(usages, func(a, b dispatch.Usage) bool { return a.Replica == b.Replica && timeOf(a) > 0 }), faults
}

// timeOf is that of a report over HTTP, by its backend's clock; 0 of what a replica says.
func timeOf(u dispatch.Usage) float64 {
	if len(u.Backends) == 0 {
		return 0
	}
	return u.Backends[0].Time
}

// hear tells the keeper what was used, and returns what it refused.
func (t *term) hear(usages []dispatch.Usage, now float64) (refused []string) {
	started, backends := add(usages)
	note := func(err error) {
		if err != nil {
			refused = append(refused, err.Error())
		}
	}
	for name := range t.quotas {
		note(t.keeper.Started(name, started[name], now))
	}
	for _, b := range backends {
		b.Time = now
		note(t.keeper.Report(b, now))
	}
	return refused
}

// add adds up what replicas report. Of a backend's loads the worst counts; its zone is the one that the first says.
func add(usages []dispatch.Usage) (started map[quota.ID]float64, backends []quota.Report) {
	started = map[quota.ID]float64{}
	at := map[string]int{}
	for _, u := range usages {
		for id, rate := range u.Started {
			started[id] += rate
		}
		for _, b := range u.Backends {
			i, known := at[b.Backend]
			if !known {
				i = len(backends)
				at[b.Backend] = i
				backends = append(backends, quota.Report{Backend: b.Backend, Zone: b.Zone, Costs: map[quota.ID]float64{}})
			}
			sum := &backends[i]
			for id, cost := range b.Costs {
				sum.Costs[id] += cost
			}
			if worse(b.Load, sum.Load) {
				sum.Load = b.Load
			}
		}
	}
	return started, backends
}

func worse(a, b quota.Load) bool {
	if b == (quota.Load{}) || a == (quota.Load{}) {
		return b == (quota.Load{})
	}
	return (a.Queue-a.Target)/a.Spring > (b.Queue-b.Target)/b.Spring
}

// write puts rates in force, unless a later term has.
func (t *term) write(ctx context.Context, identity string, decisions []quota.Decision) (at float64, err error) {
	rates := make(map[quota.ID]dispatch.Rate, len(decisions))
	for _, d := range decisions {
		if !d.Assumed {
			rates[d.ID] = dispatch.Rate{Rate: d.Smoothed, Average: d.AverageCost}
		}
	}
	fenced, other := false, ""
	var noNumber error
	err = t.Permits.Update(ctx, permits.RatesKey(t.Cluster), ratesTTL, func(old []byte, now float64) []byte {
		var before dispatch.Rates
		_ = json.Unmarshal(old, &before) // what makes no sense is replaced
		mine := before.Keeper == t.Name && before.Term == t.number
		later := t.wrote || before.Identity == identity && before.Term >= t.number // somebody has written since, or leads in a later term
		fenced, other = !mine && later && !before.Old(now), ""
		if !mine && before.Identity != identity && math.Abs(now-before.Time) < takeover.Seconds() {
			other = before.Keeper
		}
		if fenced || other != "" {
			return old
		}
		at = now
		text, err := json.Marshal(dispatch.Rates{Identity: identity, Term: t.number, Keeper: t.Name, Time: now, Rates: rates})
		if noNumber = err; err != nil {
			return old
		}
		return text
	})
	switch {
	case err != nil:
	case noNumber != nil:
		return 0, fmt.Errorf("ratekeeper: a rate is no number: %w", noNumber)
	case fenced:
		return 0, errFenced
	case other != "":
		return 0, fmt.Errorf("ratekeeper: %s finds rates in this permit store by another policy store: have all use one, or a cluster's name for each", other)
	}
	t.wrote = t.wrote || err == nil
	return at, err
}

// say logs each decision on who does something or whose rate has changed, and who loads the backends that are near their targets.
func (t *term) say(s Status) {
	for _, d := range s.Decisions {
		if d.Rate == 0 && d.Cost == 0 && t.events[d.ID] == d.Smoothed {
			continue
		}
		t.events[d.ID] = d.Smoothed
		limiting := any("unset")
		if !math.IsNaN(d.Limiting) {
			limiting = d.Limiting
		}
		t.Logger.Info("GotRate", "id", d.ID, "rate", d.Rate, "cost", d.Cost, "averageCost", d.AverageCost, "reservedQuota", d.Quota.Reserved, "totalQuota", d.Quota.Total,
			"reserved", d.Reserved, "desired", d.Desired, "limiting", limiting, "target", d.Target, "smoothed", d.Smoothed, "busy", d.Busy, "shadow", d.Shadow,
			"backends", d.Backends, "replicas", s.Replicas, "term", s.Term)
	}
	for _, b := range s.Readers {
		t.Logger.Info("BusyReader", "backend", b.Backend, "zone", b.Zone, "id", b.ID, "cost", b.Cost, "fractionalBusyness", b.Busyness, "ratio", b.Ratio)
	}
	if refused := strings.Join(s.Refused, "\n"); refused != t.refused {
		t.refused = refused
		for _, fault := range s.Refused {
			t.Logger.Warn("a report is refused", "error", fault)
		}
	}
}

// Decided returns what the ratekeeper of a cluster that leads in the latest term says of itself; ok is false if there is none.
func Decided(ctx context.Context, permits dispatch.PermitStore, cluster string) (s Status, ok bool, err error) {
	texts, err := permits.Published(ctx, StatusOf(cluster))
	if err != nil {
		return Status{}, false, err
	}
	for _, text := range texts {
		var one Status
		if json.Unmarshal(text, &one) == nil && (!ok || one.Term > s.Term) {
			s, ok = one, true
		}
	}
	return s, ok, nil
}
