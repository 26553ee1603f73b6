// Package ratekeeper computes the rates of throughput quotas. Any number of processes may run a
// ratekeeper; one of them is elected. Once a second, it adds up the reports of all replicas,
// decides with package quota, and writes the rates into the permit store, where the replicas read
// them.
//
//	keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: permits, Elector: store}
//	err := keeper.Run(ctx) // until ctx ends
//
// throttle.WithRatekeeper runs a ratekeeper in a process that has a Limiter. The command
// `throttle-admin ratekeeper` runs one by itself.
package ratekeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// An Elector elects one of several candidates as the leader.
type Elector interface {
	// Elect calls lead each time the candidate is elected, with a context that ends with the term
	// and the term's number, which is higher than all earlier ones. It returns nil when ctx ends,
	// and otherwise the error that stopped it; the caller may try again.
	Elect(
		ctx context.Context, election, candidate string, lead func(ctx context.Context, term int64),
	) error
}

// byPermits elects through the record of rates in the permit store: a candidate that finds a record
// older than takeover starts the next term. If two do so at once, the first to write leads.
type byPermits struct{ *Ratekeeper }

func (l byPermits) Elect(
	ctx context.Context, _, _ string, lead func(ctx context.Context, term int64),
) error {
	text, now, err := l.Permits.Value(ctx, permits.RatesKey(l.Cluster))
	if err != nil {
		return err
	}
	before, _ := quota.ParseRates(text) // an invalid record has no leader
	if math.Abs(now-before.Time) > takeover.Seconds() || before.Time == 0 {
		// The clock keeps terms rising when the record is lost.
		lead(ctx, max(before.Term+1, int64(now*1000)))
	}
	return nil
}

// takeover is the age of the rates after which another candidate takes over. A leader resigns when
// it has failed to find rates for that long.
const takeover = 5 * time.Second

// every is the time between two passes.
const every = time.Second

// statusTTL is how long a published Status counts.
const statusTTL = 3 * time.Second

// A Ratekeeper is one candidate. Set the fields before Run; Policies and Permits are required.
type Ratekeeper struct {
	Policies dispatch.PolicySource
	Permits  dispatch.PermitStore
	Elector  Elector      // default: a takeover when the rates in Permits are 5 s old
	Cluster  string       // default "standalone"
	Name     string       // unique; default: host name, process id and a random part
	Logger   *slog.Logger // gets an event for each decision, with all inputs; nil: silent

	// MaxIDs bounds the ids without a quota that are followed from one backend's report: the
	// costliest. Default 1000.
	MaxIDs int

	mu       sync.Mutex // guards the fields below
	snapshot policy.Snapshot
	status   Status
	reports  map[string]*keptReport // the newest of each backend, of those that came over HTTP

	reportBytes int       // of reports
	sweptAt     time.Time // when old reports were last removed
}

// A Status describes a ratekeeper and its last decisions.
type Status struct {
	Keeper    string           `json:"keeper"`
	Term      int64            `json:"term"`
	Time      float64          `json:"time"`              // on the permit store's clock, seconds
	Replicas  int              `json:"replicas"`          // that report, plus backends over HTTP
	Tracked   int              `json:"tracked"`           // known ids
	LeftOut   int              `json:"leftOut,omitempty"` // ids whose cost counts as load by others
	Refused   []string         `json:"refused,omitempty"` // faults of reports
	Decisions []quota.Decision `json:"decisions"`
	Readers   []quota.Reader   `json:"readers,omitempty"` // of backends near their targets
}

// Run takes part in the election until ctx ends, and then returns nil. It returns an error only for
// invalid fields. Later failures are logged, and Run tries again.
func (r *Ratekeeper) Run(ctx context.Context) error {
	if r.Policies == nil || r.Permits == nil {
		return errors.New("ratekeeper: set both Policies and Permits")
	}
	if r.MaxIDs < 0 {
		return fmt.Errorf("ratekeeper: MaxIDs %d: is invalid: want 1 or more, or 0 for 1000",
			r.MaxIDs)
	}
	host, _ := os.Hostname() // may be empty
	r.Cluster = cmp.Or(r.Cluster, "standalone")
	r.Name = cmp.Or(r.Name, fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), rand.Uint32N(1<<16)))
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
	select { // a process without policies cannot lead
	case <-known:
	case <-ctx.Done():
	}
	for failed := ""; ctx.Err() == nil; {
		err := r.Elector.Elect(ctx, r.Cluster, r.Name, r.lead)
		if err != nil && ctx.Err() == nil && err.Error() != failed {
			failed = err.Error()
			r.Logger.Warn("the election of a ratekeeper failed; retrying", "error", err)
		} else if err == nil {
			failed = ""
		}
		sleep(ctx, every)
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

// follow keeps r.snapshot up to date with policies that may replace the last ones. It closes known
// when the first policies arrive.
func (r *Ratekeeper) follow(ctx context.Context, known chan<- struct{}) {
	var line policy.Line
	for s, err := range r.Policies.Snapshots(ctx) {
		if err == nil {
			err = line.Follow(s)
		}
		if err != nil {
			r.Logger.Warn("cannot read the policies; the last quotas stay in force", "error", err)
			continue
		}
		r.mu.Lock()
		if r.snapshot.Set == nil {
			close(known)
		}
		r.snapshot = line.Known
		r.mu.Unlock()
	}
}

// policies returns the last snapshot, as it is now. Its Set is nil if no policies have arrived yet.
func (r *Ratekeeper) policies() policy.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snapshot.Set != nil {
		r.snapshot = r.snapshot.At(time.Now())
	}
	return r.snapshot
}

// Status returns the last decisions. Term is 0 while this candidate is not the leader.
func (r *Ratekeeper) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// A term is a period in which this candidate is the leader.
type term struct {
	*Ratekeeper
	number  int64
	keeper  quota.Keeper
	start   time.Time
	set     *policy.Set // the policies whose quotas keeper has
	quotas  map[quota.ID]policy.EffectiveQuota
	resumed bool                 // before has been read
	before  quota.Rates          // rates of the previous leader
	written written              // the rates in the permit store
	events  map[quota.ID]float64 // rates last logged
	fault   string               // of a pass, last logged
	refused string               // reports, last logged
	sound   time.Time            // last pass without an error
}

// lead finds rates until ctx ends or another candidate leads in a later term.
func (r *Ratekeeper) lead(ctx context.Context, number int64) {
	t := &term{
		Ratekeeper: r, number: number, start: time.Now(), sound: time.Now(),
		events: map[quota.ID]float64{},
	}
	t.keeper.MaxIDs = r.MaxIDs
	r.Logger.Info("ratekeeper leads", "name", r.Name, "cluster", r.Cluster, "term", number)
	defer func() {
		r.mu.Lock()
		r.status = Status{}
		r.mu.Unlock()
		r.Logger.Info("ratekeeper no longer leads", "name", r.Name, "term", number)
	}()
	for ; ctx.Err() == nil; sleep(ctx, every) {
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
			r.Logger.Warn("cannot update the rates; the last ones hold for a minute", "error", err)
		case err == nil:
			t.fault, t.sound = "", time.Now()
		}
		if time.Since(t.sound) > takeover { // another candidate may reach the permit store
			return
		}
	}
}

var errFenced = errors.New("ratekeeper: a later term has started")

// now returns the keeper's time: seconds since the term started, plus 1.
func (t *term) now() float64 { return 1 + time.Since(t.start).Seconds() }

// resume reads the rates of the previous leader, once.
func (t *term) resume(ctx context.Context) error {
	if t.resumed {
		return nil
	}
	var ids []quota.ID
	for id := range t.policies().Set.Quotas() {
		ids = append(ids, quota.ID(id.String()))
	}
	before, _, err := dispatch.Rates(ctx, t.Permits, t.Cluster, ids)
	if err != nil && !errors.Is(err, dispatch.ErrInvalidRates) {
		return err
	} else if err != nil {
		t.Logger.Warn("invalid rates are replaced", "error", err)
	}
	maps.DeleteFunc(before.Rates, func(_ quota.ID, r quota.Rate) bool { return r == quota.Rate{} })
	t.before, t.written.rows = before, maps.Clone(before.Rates)
	t.resumed = true
	return nil
}

// pass finds all rates, writes them to the permit store and publishes a Status.
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
	bytes := 0
	for _, text := range texts {
		bytes += len(text)
	}
	if len(texts) >= permits.MaxRecords || bytes > permits.MaxRecordsBytes-permits.MaxRecord {
		refused = append(refused, fmt.Sprintf("there are %d usage records of %d MiB, or more: others "+
			"are left out", len(texts), bytes>>20))
	}
	status.Replicas, status.Refused = senders(usages), append(refused, t.feed(usages, now)...)
	if n := len(status.Refused) - maxRefused; n > 0 {
		status.Refused = append(status.Refused[:maxRefused], fmt.Sprintf("and %d more", n))
	}
	status.Decisions, status.Readers = t.keeper.Decide(now), t.keeper.Readers(now)
	t.complete(status.Decisions)
	status.Tracked, status.LeftOut = t.keeper.Tracked(), t.keeper.LeftOut()
	if status.Time, err = t.write(ctx, snapshot.Epoch, status.Decisions); err != nil {
		return err
	}
	t.logDecisions(status)
	t.mu.Lock()
	t.status = status
	t.mu.Unlock()
	text, err := status.published()
	if err == nil {
		err = t.Permits.Publish(ctx, permits.RatekeeperOf(t.Cluster), t.Name, text, statusTTL)
	}
	if err != nil && ctx.Err() == nil {
		t.Logger.Debug("cannot publish the status", "error", err)
	}
	return nil
}

// maxShown bounds the decisions, and the readers, in a published Status and in the log of a pass.
// maxRefused bounds the refused reports.
const (
	maxShown   = 3000
	maxRefused = 100
)

// published returns what is published of a status: as much as one record can have.
func (s Status) published() (text []byte, err error) {
	for shown := maxShown; ; shown /= 2 {
		s.Decisions = s.Decisions[:min(len(s.Decisions), shown)]
		s.Readers = s.Readers[:min(len(s.Readers), shown)]
		text, err = json.Marshal(s)
		if err != nil || shown == 0 || permits.CheckRecord(text) == nil {
			return text, err
		}
	}
}

// complete adds to decisions how replicas apply them: an id of unknown cost has the rate of the
// assumed cost, and an id in shadow mode is not limited.
func (t *term) complete(decisions []quota.Decision) {
	for i := range decisions {
		d := &decisions[i]
		if d.Shadow = t.quotas[d.ID].Shadow; d.Assumed {
			d.AverageCost = quota.AssumedCost
			d.Reserved, d.Desired = d.Quota.Reserved/d.AverageCost, d.Quota.Total/d.AverageCost
			d.Target, d.Smoothed = d.Desired, d.Desired
		}
	}
}

// adopt passes the quotas of the policies to the keeper, if the policies have changed.
func (t *term) adopt(set *policy.Set, now float64) error {
	if set == t.set {
		return nil
	}
	how := set.QuotaSettings()
	t.keeper.ShareBy, t.keeper.Zones = quota.ShareBy(how.ShareBy), how.Zones
	if t.keeper.IgnoreZones = int(*how.IgnoreZones); t.keeper.IgnoreZones == 0 {
		t.keeper.IgnoreZones = -1
	}
	quotas := map[quota.ID]quota.Quota{}
	t.quotas = map[quota.ID]policy.EffectiveQuota{}
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

// parse reads the usage records that replicas have published. Of the reports that several processes
// keep of one backend, it returns the newest.
func parse(texts [][]byte) (usages []dispatch.Usage, faults []string) {
	for _, text := range texts {
		var u dispatch.Usage
		if err := json.Unmarshal(text, &u); err != nil {
			faults = append(faults, fmt.Sprintf("invalid usage record: %v", err))
			continue
		}
		usages = append(usages, u)
	}
	slices.SortFunc(usages, func(a, b dispatch.Usage) int { // sorted, so that sums are reproducible
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(timeOf(b), timeOf(a)))
	})
	usages = slices.CompactFunc(usages, func(a, b dispatch.Usage) bool {
		return a.Replica == b.Replica && timeOf(a) > 0
	})
	return usages, faults
}

// senders counts the replicas, and the backends, that have sent usage records, sorted by name.
func senders(usages []dispatch.Usage) (n int) {
	for i, u := range usages {
		if i == 0 || u.Replica != usages[i-1].Replica {
			n++
		}
	}
	return n
}

// timeOf returns the time of a report over HTTP by its backend's clock, or 0 for a replica's
// record.
func timeOf(u dispatch.Usage) float64 {
	if len(u.Backends) == 0 {
		return 0
	}
	return u.Backends[0].Time
}

// feed passes usage records to the keeper. It returns the faults of those that were refused.
func (t *term) feed(usages []dispatch.Usage, now float64) (refused []string) {
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

// add adds up the records of replicas. If they report a backend with different loads or zones, the
// worst load and the first zone count.
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
				backends = append(backends, quota.Report{
					Backend: b.Backend, Zone: b.Zone, Costs: map[quota.ID]float64{},
				})
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

// worse reports whether a is nearer to its target than b. Any load is worse than the zero Load.
func worse(a, b quota.Load) bool {
	if b == (quota.Load{}) || a == (quota.Load{}) {
		return b == (quota.Load{})
	}
	return (a.Queue-a.Target)/a.Spring > (b.Queue-b.Target)/b.Spring
}

// logDecisions logs each decision for an id that is active or whose rate has changed, each id that
// loads a backend near its target, and refused reports when they change. The names of the first two
// events are FoundationDB's.
func (t *term) logDecisions(s Status) {
	for _, d := range s.Decisions {
		if d.Rate == 0 && d.Cost == 0 && t.events[d.ID] == d.Smoothed {
			continue
		}
		t.events[d.ID] = d.Smoothed
		limiting := any("unset")
		if !math.IsNaN(d.Limiting) {
			limiting = d.Limiting
		}
		t.Logger.Info("GotRate", "id", d.ID,
			"rate", d.Rate, "cost", d.Cost, "averageCost", d.AverageCost,
			"reservedQuota", d.Quota.Reserved, "totalQuota", d.Quota.Total,
			"reserved", d.Reserved, "desired", d.Desired, "limiting", limiting, "target", d.Target,
			"smoothed", d.Smoothed, "busy", d.Busy, "shadow", d.Shadow,
			"backends", d.Backends, "replicas", s.Replicas, "term", s.Term)
	}
	for _, b := range s.Readers[:min(len(s.Readers), maxShown)] {
		t.Logger.Info("BusyReader", "backend", b.Backend, "zone", b.Zone, "id", b.ID,
			"cost", b.Cost, "fractionalBusyness", b.Busyness, "ratio", b.Ratio)
	}
	if refused := strings.Join(s.Refused, "\n"); refused != t.refused {
		t.refused = refused
		for _, fault := range s.Refused {
			t.Logger.Warn("refused a report", "error", fault)
		}
	}
}

// Decided returns the Status that the ratekeeper of a cluster has published in the latest term; ok
// is false if there is none.
func Decided(
	ctx context.Context, store dispatch.PermitStore, cluster string,
) (s Status, ok bool, err error) {
	texts, err := store.Published(ctx, permits.RatekeeperOf(cluster))
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
