package permits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// recordVersion is the version of the records of pools and groups. A newer one is refused, so that
// an older program does not replace it. One of oldestRecord or later is read. A record without a
// rival is of a version that the programs before know.
const (
	recordVersion      = 4
	recordWithoutRival = 3
	oldestRecord       = 2
)

func versionWith(rival schedule.Claim) int {
	if rival.Source == "" {
		return recordWithoutRival
	}
	return recordVersion
}

// A splitState is what a permit store keeps of a limit with sharing.mode split, as JSON.
type splitState struct {
	Version int `json:"version"`
	pool.State
	Line schedule.Line `json:"line,omitzero"` // of the limit's ramp

	// InForce and Rival are the claims of policy stores that have an id; see schedule.Arbitrate.
	InForce schedule.Claim `json:"inForce,omitzero"`
	Rival   schedule.Claim `json:"rival,omitzero"`
}

// sound reports whether p can be a state that was stored by now.
func (p *splitState) sound(now float64, given schedule.Revision) bool {
	return p.State.Sound(now) && p.Line.Sound(now) && schedule.ClaimsSound(p.InForce, p.Rival, now, given)
}

// A groupsState is what a permit store keeps of a limit with sharing.mode groups, as JSON.
type groupsState struct {
	Version int `json:"version"`
	pool.Division
	Line schedule.Line `json:"line,omitzero"` // of the limit's ramp

	// These are of the draw with the newest revision; of two policy stores, of the lower rate.
	Source string            `json:"source,omitempty"`
	Rev    schedule.Revision `json:"rev"`
	Terms  pool.Terms        `json:"terms"`
	Rate   float64           `json:"rate"`
	Ramp   schedule.Ramp     `json:"ramp,omitzero"`
	Heard  float64           `json:"heard,omitzero"`

	// Rival is the claim of another policy store whose members draw, too, and RivalTerms are its
	// terms.
	Rival      schedule.Claim `json:"rival,omitzero"`
	RivalTerms pool.Terms     `json:"rivalTerms,omitzero"`
}

// claim is the one in force.
func (g *groupsState) claim() schedule.Claim {
	return schedule.Claim{Source: g.Source, Rev: g.Rev, Rate: g.Rate, Ramp: g.Ramp, Heard: g.Heard}
}

// put puts a claim with its terms in force.
func (g *groupsState) put(c schedule.Claim, t pool.Terms) {
	g.Source, g.Rev, g.Rate, g.Ramp, g.Terms, g.Heard = c.Source, c.Rev, c.Rate, c.Ramp, t, 0
	if c.Source != "" {
		g.Heard = c.Heard
	}
}

// follow takes in the policies of a draw, at now.
func (g *groupsState) follow(d *Draw, now float64) {
	own := schedule.Claim{Source: d.Source, Rev: d.Rev, Rate: d.Rate, Ramp: d.Ramp, Heard: now}
	sameStore := d.Source == g.Source || d.Source == "" || g.Source == ""
	if sameStore && !d.Rev.Before(g.Rev) { // else this replica has not heard of the newest policies
		g.put(own, d.Terms)
	}
	inForce, rival := schedule.Arbitrate(g.claim(), g.Rival, own, now)
	termsOf := func(c schedule.Claim) pool.Terms {
		switch {
		case c == (schedule.Claim{}):
			return pool.Terms{}
		case c.Source == own.Source && c.Rev == own.Rev:
			return d.Terms
		case c.Source == g.Source:
			return g.Terms
		}
		return g.RivalTerms
	}
	terms, rivalTerms := termsOf(inForce), termsOf(rival)
	g.put(inForce, terms)
	g.Rival, g.RivalTerms = rival, rivalTerms
}

// terms are those in force. With a rival, the groups are those of both policy stores, so that each
// member is in one of them.
func (g *groupsState) terms() pool.Terms {
	terms := g.Terms
	if g.Rival.Source != "" {
		terms.Names = slices.Compact(slices.Sorted(slices.Values(slices.Concat(terms.Names, g.RivalTerms.Names))))
	}
	return terms
}

// sound reports whether g is none, or can be a state that was stored by now.
func (g *groupsState) sound(now float64, given schedule.Revision) bool {
	return g.Version == 0 || g.Division.Sound(now) && g.Line.Sound(now) &&
		g.Terms.Sound() && schedule.ClaimsSound(g.claim(), g.Rival, now, given) &&
		(g.Rival == schedule.Claim{} || g.RivalTerms.Sound())
}

// A PoolRecord is the record under one key that heartbeats and draws replace. Apply returns its
// new text, and TTL is its time to live once it is applied.
type PoolRecord struct {
	Key      string
	TTL      time.Duration
	requests []*Request
}

// A Record is a record of a pool or of groups as a store in memory keeps it, which neither reads
// nor writes JSON for each request. The zero Record is none.
type Record struct {
	text []byte
	says any // a splitState or a groupsState, in place of text; nil: text is it
}

// RecordOf returns the record with that text.
func RecordOf(text []byte) Record { return Record{text: text} }

// Text returns the record's text; nil if it has none or a number in it is not finite.
func (r Record) Text() []byte {
	if r.says == nil {
		return r.text
	}
	text, _ := json.Marshal(r.says)
	return text
}

// PoolRecords returns the records of all heartbeats and draws among the requests.
func PoolRecords(requests []*Request) (records []*PoolRecord) {
	var byKey map[string]*PoolRecord
	for _, r := range requests {
		var key string
		switch {
		case r.Heartbeat != nil:
			key = PoolKey(r.Key)
		case r.Draw != nil:
			key = GroupsKey(r.Key)
		default:
			continue
		}
		record := byKey[key]
		if record == nil {
			if byKey == nil {
				byKey = map[string]*PoolRecord{}
			}
			record = &PoolRecord{Key: key}
			byKey[key], records = record, append(records, record)
		}
		record.requests = append(record.requests, r)
	}
	return records
}

// Apply sets the answers of the record's requests and returns the text that replaces old, at now
// on the store's clock in seconds. It returns nil if nothing is to be replaced, since all requests
// have failed. An empty old means that there is no record. A store that compares and swaps calls
// Apply again with the text that it then finds.
func (r *PoolRecord) Apply(old []byte, now float64) (next []byte) {
	record, ok := r.Replace(RecordOf(old), now)
	if !ok {
		return nil
	}
	next, err := json.Marshal(record.says)
	if err != nil { // a number is not finite
		r.Fail(err)
	}
	return next
}

// Replace is Apply for a store in memory. It reports whether anything is to be replaced.
func (r *PoolRecord) Replace(old Record, now float64) (next Record, ok bool) {
	for _, q := range r.requests {
		var done Record
		var seconds float64
		if h := q.Heartbeat; h != nil {
			done, q.Damage = h.replace(old, now)
			seconds = max(4*h.TTL, h.Ramp.TTL)
		} else {
			done, q.Damage = q.Draw.replace(old, now)
			if g, ok := done.says.(groupsState); ok {
				seconds = max(g.Terms.Lifetime(), g.Ramp.TTL)
			}
		}
		q.Err = nil
		if done.says == nil {
			q.Err, q.Damage = q.Damage, nil
			continue
		}
		r.TTL = max(r.TTL, time.Duration(seconds*float64(time.Second)))
		old, next, ok = done, done, true
	}
	return next, ok
}

// Fail sets the requests' Err.
func (r *PoolRecord) Fail(err error) {
	for _, q := range r.requests {
		q.Err = err
	}
}

// replace sets the answer and returns the record that replaces record. now is the store's clock in
// seconds. damage is the reason why the record was not used. If next is none, the record must not
// be replaced, since it is of a newer version.
func (h *Heartbeat) replace(record Record, now float64) (next Record, damage error) {
	p, damage := read(record, func(p *splitState) *int { return &p.Version })
	if damage == nil && !p.sound(now, h.Rev) {
		damage = errUnsound
	}
	if errors.Is(damage, errNewer) {
		return Record{}, damage
	} else if damage != nil {
		p = splitState{}
	}
	h.Answer = pool.Answer{}
	switch {
	case h.Leave:
		p.State = pool.Leave(p.State, h.Member, h.TTL, now)
	case !h.Fixed:
		p.State, h.Answer = pool.Heartbeat(p.State, h.Member, h.Applied, h.TTL, now)
	}
	p.Line, _ = h.Ramp.At(p.Line, h.Rate, h.Active, false, now)
	h.Line, h.Now, h.Rival, h.Lower = p.Line, now, "", 0
	if h.Source != "" && !h.Leave {
		own := schedule.Claim{Source: h.Source, Rev: h.Rev, Rate: h.Rate, Ramp: h.Ramp}
		if p.InForce.Source == "" {
			p.InForce = own
		}
		p.InForce, p.Rival = schedule.Arbitrate(p.InForce, p.Rival, own, now)
		h.Rival = schedule.RivalOf(h.Source, p.InForce.Source, p.Rival.Source)
		if h.Source != p.InForce.Source {
			h.Lower = p.InForce.Rate
		}
	}
	p.Version = versionWith(p.Rival)
	return Record{says: p}, damage
}

// replace is the same for a draw.
func (d *Draw) replace(record Record, now float64) (next Record, damage error) {
	g, damage := read(record, func(g *groupsState) *int { return &g.Version })
	if damage == nil && !g.sound(now, d.Rev) {
		damage = errUnsound
	}
	if errors.Is(damage, errNewer) {
		return Record{}, damage
	} else if damage != nil {
		g = groupsState{}
	}
	g.follow(d, now)
	terms := g.terms()
	d.InForce, d.Allowed, d.Rival = terms, g.Rate, schedule.RivalOf(d.Source, g.Source, g.Rival.Source)
	if g.Ramp.Over > 0 {
		if g.Line, d.Allowed = g.Ramp.At(g.Line, g.Rate, d.Active, false, now); d.Allowed < g.Rate {
			terms.Permits = int64(math.Round(d.Allowed * terms.Period))
		}
	}
	g.Division, d.Drawn = g.Visit(terms, d.Visit, now)
	d.Now = now
	g.Version = versionWith(g.Rival)
	return Record{says: g}, damage
}

var (
	// errNewer is what parse wraps for a record of a newer version.
	errNewer = errors.New("upgrade this program")

	errUnsound = errors.New("damaged record: a number in it is out of bounds")
)

// read returns what a record says, whose version is at version; none is the zero value.
func read[T any](r Record, version func(*T) *int) (T, error) {
	if says, ok := r.says.(T); ok || len(r.text) == 0 {
		return says, nil
	}
	return parse(r.text, version)
}

func parse[T any](text []byte, version func(*T) *int) (says T, err error) {
	err = json.Unmarshal(text, &says) // reads the version of a newer form, too
	switch v := *version(&says); {
	case v > recordVersion && v <= schedule.MaxVersion:
		return says, fmt.Errorf("record of version %d: this program knows %d: %w", v, recordVersion,
			errNewer)
	case err != nil:
		return says, fmt.Errorf("damaged record: %w", err)
	case v < oldestRecord || v > recordVersion:
		return says, fmt.Errorf("damaged record: version %d: want %d", v, recordVersion)
	}
	return says, nil
}

// ErrConflict is why a record could not be replaced in time: others replaced it again and again. A
// request that fails with it should come again after a delay that grows.
var ErrConflict = errors.New("other processes replace it all the time")

// WaitAfterConflict is called before a compare-and-swap that lost is tried again, on the value that
// it lost to. The first attempt is 0. It waits after each third attempt only: what others replace
// all the time is out of date after a wait, so that only attempts without one can succeed. It waits
// for a random time of up to 2 ms, which doubles each time that it waits, up to 128 ms. It returns
// ErrConflict with ctx's error if ctx ends first.
func WaitAfterConflict(ctx context.Context, attempt int) error {
	if attempt%3 == 2 {
		timer := time.NewTimer(rand.N(2 * time.Millisecond << min(attempt/3, 6)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return nil
}
