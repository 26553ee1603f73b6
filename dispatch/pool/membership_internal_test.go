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
		w := &wild{fleet: &fleet{t: 1e9}, T: t}
		w.fault = w.t
		for range rapid.IntRange(0, 4).Draw(t, "at first") {
			w.join()
		}
		w.run(w.t+2*ttl, w.look)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.t += rapid.SampledFrom([]float64{0, 0, 0.001, 0.02, 0.1, 0.3, 0.6}).Draw(t, "dt")
			w.copies = append(w.copies, copied{w.t, w.state})
			act := "join"
			if len(w.replicas) > 0 {
				act = rapid.SampledFrom([]string{
					"heartbeat", "heartbeat", "run", "run", "pause", "pause", "resume", "lost reply", "late reply",
					"reply", "copy", "copy",
					"join", "crash", "leave", "lose", "restore", "jump",
				}).Draw(t, "act")
			}
			if !w.act(act) && w.t-w.fault >= ttl { // one fault of the store at a time
				w.fault = w.t
				w.spoil(act)
			}
			w.look()
		}
		if len(w.replicas) == 0 {
			w.join()
		}
		for _, r := range w.replicas {
			r.paused = false
		}
		w.run(w.t+4*ttl, w.look)
		for _, r := range w.replicas {
			if a := w.held(r); !a.Agreed || a.Size != len(w.replicas) {
				t.Fatalf("%+v in a pool of %d: %+v", a, len(w.replicas), w.state)
			}
		}
		for period := range int64(10) {
			if got := w.permits(17, period); got != 17 {
				t.Fatalf("%d of 17 permits", got)
			}
		}
	})
}

// A wild fleet does what rapid draws.
type wild struct {
	*fleet
	*rapid.T
	late   []reply
	copies []copied
	fault  float64 // the last fault of the store
}

type reply struct {
	to     *replica
	member string
	answer Answer
	sent   float64
}

type copied struct {
	t     float64
	state State
}

// look fails if replicas have more than the limit.
func (w *wild) look() {
	if sum := w.sum(); sum > 1+1e-9 {
		w.Fatalf("%v of the limit at %v: %+v", sum, w.t, w.state)
	}
	for _, permits := range []int64{1, 7, 1000} {
		if got := w.permits(permits, int64(w.t)); got > permits+int64(len(w.replicas)) {
			w.Fatalf("%d of %d permits", got, permits)
		}
	}
}

func (w *wild) pick(what string) int { return rapid.IntRange(0, len(w.replicas)-1).Draw(w.T, what) }

// act does something, unless it is a fault of the store.
func (w *wild) act(act string) (done bool) {
	any := func() *replica { return w.replicas[w.pick("replica")] }
	switch act {
	case "heartbeat":
		w.heartbeat(any())
	case "run":
		w.run(w.t+rapid.SampledFrom([]float64{0, 0.05, 0.1, 0.5, 1}).Draw(w.T, "span"), w.look)
	case "pause":
		any().paused = true
	case "resume":
		any().paused = false
	case "lost reply":
		w.deliver(w.begin(any()))
	case "late reply":
		r := any()
		c := w.begin(r)
		w.late = append(w.late, reply{r, c.member, w.deliver(c), w.t + r.skew})
	case "reply":
		if len(w.late) > 0 {
			l := w.late[rapid.IntRange(0, len(w.late)-1).Draw(w.T, "late")]
			l.to.lease = l.to.lease.At(w.t+l.to.skew).Renew(l.member, l.answer, l.sent, ttl)
		}
	case "copy": // of a call: late or again
		if len(w.calls) > 0 {
			w.deliver(w.calls[len(w.calls)-1-rapid.IntRange(0, min(20, len(w.calls)-1)).Draw(w.T, "call")])
		}
	case "join":
		if len(w.replicas) < 6 {
			w.join()
		}
	case "crash":
		w.crash(w.pick("crashed"))
	case "leave":
		w.leave(w.pick("leaver"))
	default:
		return false
	}
	return true
}

// spoil has the store do something wrong.
func (w *wild) spoil(fault string) {
	switch fault {
	case "lose":
		w.state = State{}
	case "restore":
		c := w.copies[len(w.copies)-1-rapid.IntRange(0, min(30, len(w.copies)-1)).Draw(w.T, "age")]
		if w.t-c.t <= ttl/2 {
			w.state = c.state
		}
	case "jump":
		w.skew += rapid.SampledFrom([]float64{-5, -0.3, 0.3, 0.85, 5}).Draw(w.T, "jump")
	}
}
