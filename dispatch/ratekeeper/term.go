package ratekeeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

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
	status.Decisions, status.Readers, status.Backends = t.keeper.Decide(now), t.keeper.Readers(now), t.keeper.Backends(now)
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

// complete adds to decisions how replicas apply them: an id of unknown cost has the rate of the
// assumed cost, and an id in shadow mode is not limited.
func (t *term) complete(decisions []quota.Decision) {
	for i := range decisions {
		d := &decisions[i]
		d.Shadow = t.quotas[d.ID].Shadow
		if d.Assumed {
			d.AverageCost = quota.AssumedCost
			d.Reserved, d.Desired = d.Quota.Reserved/d.AverageCost, d.Quota.Total/d.AverageCost
			d.Target, d.Smoothed = d.Desired, d.Desired
		}
	}
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
