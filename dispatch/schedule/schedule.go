// Package schedule is the arithmetic by which many replicas share one limit.
//
// A limit of R permits a second is a line of slots on the store's clock, 1/R apart: its schedule.
// A replica that requests permits is allocated the next free slots, a batch at a time, at the tail
// of the schedule. Allocate computes this allocation: a pure function of the state, the request
// and the store's clock. Permit stores run it where they keep the state. The Redis permit store
// runs its twin in Lua, which does the same operations in the same order, so that both give
// identical replies, to the last bit. It has the constants of this package as plain numbers: change
// them in both; TestTwins notices.
//
// Times are seconds, and rates are permits a second. Both are float64, since scripts in a store
// have no other numbers. Permits are whole numbers.
package schedule

import "github.com/dispatchthrottle/throttle/dispatch/busy"

// Version is the latest version of the stored form of a State. A permit store refuses a newer one.
// A State without a Rival is stored as one of version 4, which the programs before know.
const Version, versionWithoutRival = 5, 4

// MaxVersion is the latest version that stored data can have: a later one is damage.
const MaxVersion = 1000

// A State is the schedule of one limit, as the store keeps it; the zero value is a limit without
// allocations.
type State struct {
	Inc      int64    // incarnation, drawn when the state was made; 0 = no state
	Seq      int64    // allocations made
	Last     float64  // clock at the last request
	Checked  float64  // clock at the last request with bounds, which say what the clock should show
	Resumed  float64  // clock at the first request after the last silence
	Shifts   float64  // seconds that the times here have moved by in all: the clock has stepped
	Step     Step     // the last of these steps
	Server   float64  // number of the server that last ran a strict request; 0 = unknown
	Source   string   `json:",omitempty"` // the policy store that Rev is of: see Claim
	Rev      Revision // of the policies that Top and Ramp are from
	Rate     float64  // permits a second, now
	Top      float64  // without a ramp, or at its end
	Ramp     Ramp
	Line     Line
	Tail     float64 // the time up to which slots are allocated
	Quick    float64 // the time up to which slots are allocated to those with credit
	Epoch    int64
	Start    float64  // of the epoch
	This     Sums     // of this epoch
	Prev     Sums     // of the epoch before
	Queue    []Waiter `json:",omitempty"` // for slots of a strict schedule, in the order they came
	Outcomes Outcomes `json:",omitzero"`  // of a limit with a Rule
	Rival    Claim    `json:",omitzero"`  // of another policy store, whose replicas use the limit, too
	Heard    float64  `json:",omitzero"`  // with a Rival: clock at the last request for Rev's store
}

// Version is that of the stored form of the state.
func (s *State) Version() int {
	if s.Rival.Source == "" {
		return versionWithoutRival
	}
	return Version
}

// A Revision is the revision of policies.
type Revision struct {
	Epoch  int64 // when their store was last adopted, Unix milliseconds; 0 = never
	Number int64 // of the store; revisions of a later epoch are newer, whatever their number
}

// Before reports whether r is older than o.
func (r Revision) Before(o Revision) bool {
	return r.Epoch < o.Epoch || r.Epoch == o.Epoch && r.Number < o.Number
}

// Sums are what all subscriptions have shown in one epoch.
type Sums struct {
	Weight   float64 // active weight
	Reserved float64 // its reservations, permits a second
	Need     float64 // the longest time that a replica must wait for one permit, seconds
}

// A Sub is what the store keeps for one subscription of a limit; the zero value is one without
// requests.
type Sub struct {
	Epoch int64 // of its last request
	This  Part
	Prev  Part
}

// A Part is what one subscription has shown in one epoch.
type Part struct {
	K        float64 // its demand, in shares of a replica
	Weight   float64 // its part of the limit's sums
	Reserved float64
}

// Carry is what a replica keeps of a reply and sends with its next request, so that the store
// need not remember replicas. The zero value is that of a replica's first request.
type Carry struct {
	Inc, Seq, Epoch int64
	Shifts          float64 // of the state
	Eff             float64 // as what part of a share this replica was counted, 0..1
	Fraction        float64 // of a permit, left over from the last quantum
	Round           float64 // seconds; 0 = none yet
	Refused         float64 // how often this replica was refused since it was allocated permits
}

// A Request asks for permits of one limit, for one replica of a subscription.
type Request struct {
	Subscription string
	Weight       float64  // > 0
	Reserved     float64  // permits a second
	Demand       float64  // permits a second
	Want         float64  // permits; 0 = none, which only gives back
	Returned     float64  // permits allocated earlier and not spent, which are given back
	Held         float64  // permits allocated earlier and not spent, without Returned
	Lead         float64  // for how long replicas hold slots of a lost state, as far as known, seconds
	RTT          float64  // of the last requests, seconds
	Round        float64  // the policy's round T, seconds
	Burst        float64  // permits that an idle limit saves up
	Rate         float64  // the policy's, permits a second, > 0; see Allocate
	Ramp         Ramp     // up to Rate
	Source       string   // the policy store of these policies: see Claim; "" = none that has an id
	Rev          Revision // of the policies that Rate and Ramp are from
	NotAfter     float64  // on the store's clock: when the request is too late; 0 = never
	Strict       bool     // one slot at a time, no credit, nothing shared by weight
	MaxReserved  float64  // of a strict limit: future slots, with this one; 0 = only a slot due now
	Waiter       string   // of Strict: its name in the queue, at most 255 bytes; "" = does not queue
	Nonce        int64    // > 0, random: the incarnation of a new state
	Rule         busy.Rule
	Answers      Answers // of a Rule: since the last request
	Low, High    float64 // of the store's clock when this was sent, by the last reply; 0 = unknown
	Sole         bool    // the store has never lost a state, nor do replicas hold slots of one
	Server       float64 // of Strict: number of the server, set by the store; 0 = unknown
	Carry        Carry
}

// A Reply is the answer to a Request. N is 0 if nothing was wanted, or if the line is full: then
// Start is when to ask again at the earliest, and, unless the request was strict, the line may run
// empty Gap later.
type Reply struct {
	Late  bool    // the request came after NotAfter: nothing was changed
	Lost  bool    // the state was out of bounds: a new one has replaced it
	N     float64 // permits
	Start float64 // of the first slot, seconds from Now, < 0 if saved up; see above if N is 0
	Share float64 // permits a second that this replica may count on
	Rate  float64 // of the limit now, permits a second
	Gap   float64 // seconds between two slots, and after the last; on a ramp less than 1/Rate
	Lead  float64 // how far ahead slots were allocated before these, seconds; 0 if strict, or N is 0
	Wake  string  // a waiter, not the caller, whose turn has come: the store wakes it
	Now   float64 // the store's clock
	Ahead float64 // seconds that the tail is further ahead since a presumed step of the clock
	Since float64 // seconds since the first request after the last silence
	Rival string  // another policy store whose replicas use the limit, too; "" = none
	Carry Carry
}

// LeastLifetime is how long each state is kept without a request, in seconds.
const LeastLifetime = 3600

// week is the longest for which an unused strict schedule of many periods is kept, seconds.
const week = 7 * 24 * 3600

// Lifetime returns how long a state is kept without a request, in seconds: as long as it can
// matter, and LeastLifetime at least. A new strict schedule starts after a period and a second. An
// unused one is therefore kept for a thousand periods, or for a week if that is shorter, but for
// ten periods at least: what a caller then waits is little beside how long it was away.
func (s State) Lifetime(strict bool, now float64) float64 {
	periods := 2 / s.Rate
	if strict {
		periods = max(10/s.Rate, min(week, 1000/s.Rate))
	}
	return max(LeastLifetime, 2*(s.Tail-now), periods)
}
