package permits

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// recordVersion is the version of the records of pools and groups. A newer one is refused, so that
// an older program does not replace it.
const recordVersion = 1

// A splitState is what a permit store keeps of a limit with sharing.mode split, as JSON.
type splitState struct {
	Version int `json:"version"`
	pool.State
	Line schedule.Line `json:"line,omitzero"` // of the limit's ramp
}

// A groupsState is what a permit store keeps of a limit with sharing.mode groups, as JSON.
type groupsState struct {
	Version int `json:"version"`
	pool.Division
	Line schedule.Line `json:"line,omitzero"` // of the limit's ramp
}

// A PoolRecord is the record under one key that heartbeats and draws replace. Apply returns its
// new text, and TTL is its time to live.
type PoolRecord struct {
	Key      string
	TTL      time.Duration
	requests []*Request
}

// PoolRecords returns the records of all heartbeats and draws among the requests.
func PoolRecords(requests []*Request) (records []*PoolRecord) {
	var byKey map[string]*PoolRecord
	for _, r := range requests {
		var key string
		var seconds float64
		switch {
		case r.Heartbeat != nil:
			key, seconds = PoolKey(r.Key), max(4*r.Heartbeat.TTL, r.Heartbeat.Ramp.TTL)
		case r.Draw != nil:
			key, seconds = GroupsKey(r.Key), max(r.Draw.Terms.Lifetime(), r.Draw.Ramp.TTL)
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
		record.TTL = max(record.TTL, time.Duration(seconds*float64(time.Second)))
		record.requests = append(record.requests, r)
	}
	return records
}

// Apply sets the answers of the record's requests and returns the text that replaces old, at now
// on the store's clock in seconds. It returns nil if nothing is to be replaced, since all requests
// have failed. An empty old means that there is no record. A store that compares and swaps calls
// Apply again with the text that it then finds.
func (r *PoolRecord) Apply(old []byte, now float64) (next []byte) {
	for _, q := range r.requests {
		var text []byte
		if q.Heartbeat != nil {
			text, q.Damage = q.Heartbeat.Apply(old, now)
		} else {
			text, q.Damage = q.Draw.Apply(old, now)
		}
		if q.Err = nil; text == nil {
			q.Err, q.Damage = q.Damage, nil
			continue
		}
		old, next = text, text
	}
	return next
}

// Fail sets the requests' Err.
func (r *PoolRecord) Fail(err error) {
	for _, q := range r.requests {
		q.Err = err
	}
}

// Apply sets the answer and returns the record that replaces record; an empty record means that
// there is none. now is the store's clock in seconds. damage is the reason why the record was not
// used. If next is nil, the record must not be replaced, since it is of a newer version.
func (h *Heartbeat) Apply(record []byte, now float64) (next []byte, damage error) {
	var p splitState
	if damage = parse(record, &p, &p.Version); errors.Is(damage, errNewer) {
		return nil, damage
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
	h.Line, h.Now = p.Line, now
	p.Version = recordVersion
	return encode(p, damage)
}

// Apply sets the answer and returns the record that replaces record; an empty record means that
// there is none. now is the store's clock in seconds. damage is the reason why the record was not
// used. If next is nil, the record must not be replaced, since it is of a newer version.
func (d *Draw) Apply(record []byte, now float64) (next []byte, damage error) {
	var g groupsState
	if damage = parse(record, &g, &g.Version); errors.Is(damage, errNewer) {
		return nil, damage
	} else if damage != nil {
		g = groupsState{}
	}
	terms := d.Terms
	d.Allowed = d.Rate
	if d.Ramp.Over > 0 {
		if g.Line, d.Allowed = d.Ramp.At(g.Line, d.Rate, d.Active, false, now); d.Allowed < d.Rate {
			terms.Permits = int64(math.Round(d.Allowed * terms.Period))
		}
	}
	g.Division, d.Drawn = g.Visit(terms, d.Visit, now)
	d.Now = now
	g.Version = recordVersion
	return encode(g, damage)
}

// errNewer is what parse wraps for a record of a newer version.
var errNewer = errors.New("upgrade this program")

// parse reads a record, which has its version at version; none is the zero value.
func parse(record []byte, into any, version *int) error {
	if len(record) == 0 {
		return nil
	}
	err := json.Unmarshal(record, into) // reads the version of a newer form, too
	switch {
	case *version > recordVersion:
		return fmt.Errorf("record of version %d: this program knows %d: %w", *version,
			recordVersion, errNewer)
	case err != nil:
		return fmt.Errorf("damaged record: %w", err)
	case *version != recordVersion:
		return fmt.Errorf("damaged record: version %d: want %d", *version, recordVersion)
	}
	return nil
}

// encode is a record as JSON, with the damage of the one that it replaces. It fails where a
// number is not finite.
func encode(record any, damage error) ([]byte, error) {
	next, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return next, damage
}
