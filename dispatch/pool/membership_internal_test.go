package pool

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

const ttl = 1.0

// A fleet is a store and its replicas in simulated time. True time is hidden from both: the
// store and every replica read clocks that are off.
type fleet struct {
	t        float64 // true time
	skew     float64 // of the store's clock
	state    State
	replicas []*replica
	calls    []call // made, for late copies
	made     int
}

type replica struct {
	skew   float64
	lease  Lease
	next   float64 // true time of the next call
	paused bool
}

type call struct {
	member  string
	applied Answer
	leave   bool
}

func (f *fleet) join() *replica {
	f.made++
	r := &replica{skew: float64(f.made) * 13, next: f.t}
	r.lease.Replica = fmt.Sprint("r", f.made)
	f.replicas = append(f.replicas, r)
	return r
}

// crash takes a replica away without a word.
func (f *fleet) crash(i int) { f.replicas = append(f.replicas[:i:i], f.replicas[i+1:]...) }

// deliver runs a call at the store, now.
func (f *fleet) deliver(c call) (a Answer) {
	if c.leave {
		f.state = Leave(f.state, c.member, ttl, f.t+f.skew)
		return a
	}
	f.state, a = Heartbeat(f.state, c.member, c.applied, ttl, f.t+f.skew)
	return a
}

// begin makes a replica's call without delivering it.
func (f *fleet) begin(r *replica) call {
	r.lease = r.lease.At(f.t + r.skew)
	c := call{member: r.lease.Member(), applied: r.lease.Answer}
	f.calls = append(f.calls, c)
	return c
}

// heartbeat is a whole call, sent, answered and applied now.
func (f *fleet) heartbeat(r *replica) Answer {
	c := f.begin(r)
	a := f.deliver(c)
	r.lease = r.lease.Renew(c.member, a, f.t+r.skew, ttl)
	return a
}

// leave is a clean end.
func (f *fleet) leave(i int) {
	c := call{member: f.replicas[i].lease.Member(), leave: true}
	f.crash(i)
	f.calls = append(f.calls, c)
	f.deliver(c)
}

// held is what a replica may spend by now.
func (f *fleet) held(r *replica) Answer { return r.lease.At(f.t + r.skew).Answer }

// sum is what all replicas together may spend of a limit of 1, without remainders.
func (f *fleet) sum() float64 {
	sum := 0.0
	for _, r := range f.replicas {
		if a := f.held(r); a.Size > 0 {
			sum += 1 / float64(a.Size)
		}
	}
	return sum
}

// permits returns how many of a period's permits all replicas together may spend.
func (f *fleet) permits(permits, period int64) (sum int64) {
	for _, r := range f.replicas {
		a := f.held(r)
		sum += share(permits, a.Size, a.Rank, period)
	}
	return sum
}

// run has every replica send its heartbeat when its last answer says so, and looks at every step.
func (f *fleet) run(until float64, look func()) {
	for {
		var next *replica
		for _, r := range f.replicas {
			if !r.paused && (next == nil || r.next < next.next) {
				next = r
			}
		}
		if next == nil || next.next > until {
			f.t = max(f.t, until)
			look()
			return
		}
		f.t = max(f.t, next.next)
		next.next = f.t + f.heartbeat(next).Again(ttl)
		look()
	}
}

// TestHeartbeatInvariant: under random joins, leaves, crashes, pauses, lost, late and doubled
// calls and replies, a state that is lost or an old one, and a store's clock that jumps, the sum
// of all shares never exceeds the limit; and when all that is over, all that are left share it
// exactly.
func TestHeartbeatInvariant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &fleet{t: 1e9}
		type reply struct {
			to     *replica
			member string
			answer Answer
			sent   float64
		}
		var late []reply
		type copied struct {
			t     float64
			state State
		}
		var copies []copied
		fault := f.t // the last fault of the store
		pick := func() *replica {
			return f.replicas[rapid.IntRange(0, len(f.replicas)-1).Draw(t, "replica")]
		}
		look := func() {
			if sum := f.sum(); sum > 1+1e-9 {
				t.Fatalf("%v of the limit at %v: %+v", sum, f.t, f.state)
			}
			for _, permits := range []int64{1, 7, 1000} {
				if got := f.permits(permits, int64(f.t)); got > permits+int64(len(f.replicas)) {
					t.Fatalf("%d of %d permits", got, permits)
				}
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "at first") {
			f.join()
		}
		f.run(f.t+2*ttl, look)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			f.t += rapid.SampledFrom([]float64{0, 0, 0.001, 0.02, 0.1, 0.3, 0.6}).Draw(t, "dt")
			copies = append(copies, copied{f.t, f.state})
			act := "join"
			if len(f.replicas) > 0 {
				act = rapid.SampledFrom([]string{
					"heartbeat", "heartbeat", "run", "run", "pause", "pause", "resume", "lost reply", "late reply",
					"reply", "copy", "copy",
					"join", "crash", "leave", "lose", "restore", "jump",
				}).Draw(t, "act")
			}
			switch act {
			case "heartbeat":
				f.heartbeat(pick())
			case "run":
				f.run(f.t+rapid.SampledFrom([]float64{0, 0.05, 0.1, 0.5, 1}).Draw(t, "span"), look)
			case "pause":
				pick().paused = true
			case "resume":
				pick().paused = false
			case "lost reply":
				f.deliver(f.begin(pick()))
			case "late reply":
				r := pick()
				c := f.begin(r)
				late = append(late, reply{r, c.member, f.deliver(c), f.t + r.skew})
			case "reply":
				if len(late) > 0 {
					l := late[rapid.IntRange(0, len(late)-1).Draw(t, "late")]
					l.to.lease = l.to.lease.At(f.t+l.to.skew).Renew(l.member, l.answer, l.sent, ttl)
				}
			case "copy": // of a call: late or again
				if len(f.calls) > 0 {
					f.deliver(f.calls[len(f.calls)-1-rapid.IntRange(0, min(20, len(f.calls)-1)).Draw(t, "call")])
				}
			case "join":
				if len(f.replicas) < 6 {
					f.join()
				}
			case "crash":
				f.crash(rapid.IntRange(0, len(f.replicas)-1).Draw(t, "crashed"))
			case "leave":
				f.leave(rapid.IntRange(0, len(f.replicas)-1).Draw(t, "leaver"))
			default:
				if f.t-fault < ttl { // one fault of the store at a time
					break
				}
				fault = f.t
				switch act {
				case "lose":
					f.state = State{}
				case "restore":
					c := copies[len(copies)-1-rapid.IntRange(0, min(30, len(copies)-1)).Draw(t, "age")]
					if f.t-c.t <= ttl/2 {
						f.state = c.state
					}
				case "jump":
					f.skew += rapid.SampledFrom([]float64{-5, -0.3, 0.3, 0.85, 5}).Draw(t, "jump")
				}
			}
			look()
		}
		if len(f.replicas) == 0 {
			f.join()
		}
		for _, r := range f.replicas {
			r.paused = false
		}
		f.run(f.t+4*ttl, look)
		for _, r := range f.replicas {
			if a := f.held(r); !a.Agreed || a.Size != len(f.replicas) {
				t.Fatalf("%+v in a pool of %d: %+v", a, len(f.replicas), f.state)
			}
		}
		for period := range int64(10) {
			if got := f.permits(17, period); got != 17 {
				t.Fatalf("%d of 17 permits", got)
			}
		}
	})
}
