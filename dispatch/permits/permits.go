// Package permits has what Limiters and permit stores exchange: the requests with their answers,
// the records that a store keeps, and the keys under which it keeps them.
//
// The permit stores are in the packages below this one. Package permitstest is their conformance
// suite.
package permits

import (
	"errors"
	"fmt"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A Request is one request to a permit store, with the place for its answer. Exactly one of
// Allocate, Heartbeat and Draw is not nil. A store changes nothing in it but the answer, Err and
// Damage.
type Request struct {
	Key       string // of the limit, from [LimitKey], [BusyKey] or [QuotaKey]
	Allocate  *Allocate
	Heartbeat *Heartbeat
	Draw      *Draw

	// Err is why the request failed; nil if it was answered. One that failed may have been made
	// all the same: a store sends nothing twice. The answer counts only if Err is nil.
	Err error

	// Damage is why the record that a heartbeat or a draw found was not used: the store went on
	// as if there had been none, and replaced it. nil: it was used, or there was none. Of an
	// allocation, Reply.Lost says so.
	Damage error
}

// errLost is the Damaged of an allocation.
var errLost = errors.New("damaged state: a number in it is out of bounds")

// Damaged returns why what was stored was not used; nil if it was, or if there was nothing.
func (r *Request) Damaged() error {
	if r.Allocate != nil && r.Allocate.Reply.Lost {
		return errLost
	}
	return r.Damage
}

// Check gives a request the answer to which is out of bounds an Err in its place.
func (r *Request) Check() {
	if a := r.Allocate; a != nil && r.Err == nil && !a.Reply.Sound(a.Request) {
		r.Err = fmt.Errorf("permits: %s: invalid answer: %+v", r.Key, a.Reply)
	}
}

// An Allocate asks a limit's schedule for its next free slots; see [schedule.Allocate].
type Allocate struct {
	schedule.Request
	Reply schedule.Reply // the answer
}

// A Heartbeat shows that a replica of a limit with `sharing.mode: split` is there, and agrees on
// the pool size; see [pool.Heartbeat] and [pool.Leave].
type Heartbeat struct {
	Member  string      // its name, from [pool.Lease.Member]
	Applied pool.Answer // that the replica divides the limit by now
	TTL     float64     // seconds after which a silent member does not count, > 0
	Leave   bool        // the replica leaves; there is no answer but Now
	Fixed   bool        // the policy says the pool size: only the ramp's line is asked for
	Rate    float64     // of the limit, permits a second
	Ramp    schedule.Ramp
	Active  bool              // permits were wanted since the last heartbeat: a relaxed ramp rises
	Source  string            // the policy store of Rev; see schedule.Request
	Rev     schedule.Revision // of the policies that Rate and Ramp are from

	Answer pool.Answer   // the answer
	Line   schedule.Line // where the limit is on its ramp
	Rival  string        // another policy store whose replicas use the limit, too; "" = none
	Lower  float64       // the rate in force, if it is that of the Rival; else 0
	Now    float64       // the store's clock, seconds
}

// A Draw takes permits of a limit with `sharing.mode: groups`; see [pool.Division.Visit]. The
// terms, the rate and the ramp of the newest revision are in force, also for draws with older ones.
type Draw struct {
	Terms  pool.Terms
	Visit  pool.Visit
	Rate   float64 // of the limit, permits a second
	Ramp   schedule.Ramp
	Source string            // the policy store of Rev; see schedule.Request
	Rev    schedule.Revision // of the policies that Terms, Rate and Ramp are from
	Active bool              // permits are wanted: a relaxed ramp rises

	Drawn   pool.Drawn // the answer
	InForce pool.Terms // Terms, or those of the newest Rev, or of a policy store with a lower rate
	Rival   string     // another policy store whose replicas use the limit, too; "" = none
	Allowed float64    // the rate in force, or where that is on its ramp, permits a second
	Now     float64    // the store's clock, seconds
}

// Now is the store's clock in the answer, seconds.
func (r *Request) Now() float64 {
	switch {
	case r.Allocate != nil:
		return r.Allocate.Reply.Now
	case r.Heartbeat != nil:
		return r.Heartbeat.Now
	}
	return r.Draw.Now
}

// Late reports whether the request came too late to count: its sender had given up.
func (r *Request) Late() bool { return r.Allocate != nil && r.Allocate.Reply.Late }

// Bounds of the records that PermitStore.Publish keeps, and of rows.
const (
	// MaxRecord is the size of the largest record, in bytes.
	MaxRecord = 1 << 20

	// MaxRecords is how many records of one cluster PermitStore.Published returns at most.
	MaxRecords = 20_000

	// MaxRecordsBytes is how many bytes these records have in all. A record that does not fit is left
	// out, so that there are more than MaxRecordsBytes - MaxRecord bytes of others.
	MaxRecordsBytes = 64 << 20

	// RowsPage is how many rows one call of PermitStore.Rows or PermitStore.SetRows may have.
	RowsPage = 1000

	// RecordsPage is how many records a permit store reads at once, if they have no more than
	// RecordsPageBytes. A record that is larger is read by itself.
	RecordsPage      = 1000
	RecordsPageBytes = 1 << 20
)

// CheckRecord returns why a record is too large to be published; nil if it is not.
func CheckRecord(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("permits: a record of %d bytes is too large to be published: "+
			"want %d or less", len(record), MaxRecord)
	}
	return nil
}
