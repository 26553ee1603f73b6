package permitstest

import (
	"context"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A History records allocations by several clients of a permit store, to check that the store is
// linearizable: that the replies are those of [schedule.Allocate], run for one request after the
// other, in an order in which each request comes after those that had been answered when it was
// sent. A request that failed comes anywhere after it was sent, or never.
type History struct {
	start time.Time

	mu         sync.Mutex // guards the field below
	operations []porcupine.Operation
}

// NewHistory returns an empty history.
func NewHistory() *History { return &History{start: time.Now()} }

// A Version is one that a limit's schedule has had, by what the store's own log says: Redis's
// append-only file, etcd's revisions. It says at which time of the store's clock a request was
// carried out the reply to which was lost. It also says much of what the request was, which makes
// the check fast. The zero value says that the schedule was lost.
type Version struct {
	state    schedule.State
	answered bool // the reply to the request that made it is known
	restored int  // without a state: what there was after that many versions; 0 = nothing
	kept     bool // it is restored later
}

// Restored is the version that says that the schedule was what it had been after n versions of the
// log: a snapshot was loaded.
func Restored(n int) Version { return Version{restored: n} }

// VersionOf is the version that a state is. It leaves out what Redis keeps apart.
func VersionOf(s schedule.State) Version {
	s.Top, s.Ramp, s.Line, s.Queue, s.Outcomes = 0, schedule.Ramp{}, schedule.Line{}, nil, schedule.Outcomes{}
	return Version{state: s}
}

// made reports whether a request made the version.
func (v Version) made() bool { return v.state.Inc != 0 }

// Equal reports whether two versions are the same.
func (v Version) Equal(o Version) bool { return reflect.DeepEqual(v.state, o.state) }

// An operation is the input of one allocation; without a request, it is the end of the history.
type operation struct {
	key     string
	request *schedule.Request
}

// An answer is its output.
type answer struct {
	reply schedule.Reply
	took  float64 // seconds
	err   error   // the request has failed: whether it was carried out is unknown
}

// Allocate makes an allocation and records it. One client makes one allocation at a time.
func (h *History) Allocate(
	ctx context.Context, client int, store dispatch.PermitStore, key string, r schedule.Request,
) (schedule.Reply, error) {
	call := time.Since(h.start)
	reply, err := Allocate(ctx, store, key, r)
	end := time.Since(h.start)
	out := answer{reply, (end - call).Seconds(), err}
	out.reply.Wake = "" // Redis publishes it
	h.mu.Lock()
	defer h.mu.Unlock()
	o := porcupine.Operation{
		ClientId: client, Input: operation{key, &r}, Call: int64(call), Output: out, Return: int64(end),
	}
	if err != nil {
		o.Return = math.MaxInt64
	}
	h.operations = append(h.operations, o)
	return reply, err
}

// size counts the operations, those that failed, and those that were carried out and answered.
func (h *History) size() (all, failed, done int) {
	for _, o := range h.operations {
		switch out := o.Output.(answer); {
		case out.err != nil:
			failed++
		case !out.reply.Late:
			done++
		}
	}
	return len(h.operations), failed, done
}

// A line is the model's state of one limit.
type line struct {
	version int  // of the store's log, how many have been
	ended   bool // all of them have, and all requests that were answered
	state   schedule.State
	subs    map[string]schedule.Sub
	kept    *line // what will be restored
}

// next is the line after a version of the log that no request made.
func (l line) next(v Version) line {
	after := line{version: l.version + 1, kept: l.kept}
	if v.restored > 0 {
		after.state, after.subs = l.kept.state, l.kept.subs
	}
	return after.keep(v)
}

// keep keeps the line after a version that is restored later.
func (l line) keep(v Version) line {
	if v.kept {
		l.kept = &line{state: l.state, subs: l.subs}
	}
	return l
}

// step carries an operation out, and reports whether that may come next. An operation without
// effect comes after the end, so that there are few orders to try.
func (l line) step(log []Version, in operation, out answer) (bool, line) {
	for l.version < len(log) && !log[l.version].made() {
		l = l.next(log[l.version])
	}
	r := in.request
	if out.err == nil && out.reply.Late {
		return r.NotAfter > 0 && out.reply.Now > r.NotAfter, l.unchanged(log)
	}
	if l.ended { // failed requests are left, which were never carried out
		return true, l
	}
	if l.version == len(log) {
		l.ended = r == nil
		return l.ended, l
	}
	next := log[l.version]
	if r == nil || out.err != nil && next.answered {
		return false, l
	}
	own := *r
	own.Server = next.state.Server
	state, sub, reply := schedule.Allocate(l.state, l.subs[r.Subscription], own, next.state.Last)
	if !next.Equal(VersionOf(state)) || out.err == nil && !same(own, reply, out) {
		after := l.unchanged(log)
		return out.err != nil && r.NotAfter > 0 && after.version > l.version, after
	}
	subs := map[string]schedule.Sub{}
	for name, s := range l.subs {
		if !reply.Lost {
			subs[name] = s
		}
	}
	subs[r.Subscription] = sub
	return true, line{version: l.version + 1, state: state, subs: subs, kept: l.kept}.keep(next)
}

// unchanged is the line after a request that was late: etcd has a version more.
func (l line) unchanged(log []Version) line {
	if l.version < len(log) && log[l.version].Equal(VersionOf(l.state)) {
		l.version++
		return l.keep(log[l.version-1])
	}
	return l
}

// same reports whether a store's answer to r is the reply, to the last bit; or, of a store whose
// clock the process keeps, the reply as it is some time later.
func same(r schedule.Request, want schedule.Reply, got answer) bool {
	want.Wake = ""
	if past := got.reply.Now - want.Now; past > 0 && past <= got.took {
		if !delayed(r, want, got.reply, past) {
			return false
		}
		if want.N > 0 && !r.Strict && math.Abs(want.Lead-past-got.reply.Lead) < 1e-6 {
			want.Lead = got.reply.Lead
		}
		want.N, want.Start, want.Now = got.reply.N, got.reply.Start, got.reply.Now
	}
	return want == got.reply
}

// delayed reports whether got has the permits of want as etcd's store gives them past seconds
// later. Strict slots are nearer by that time. Other slots are nearer by a part of it, so that they
// come late, and those that are over for more than a round even so are wasted.
func delayed(r schedule.Request, want, got schedule.Reply, past float64) bool {
	nearer := [2]float64{0, past} // at least, at most
	wasted := want.N - got.N
	over := want.Start + r.Round + wasted*want.Gap // nearer than this, the first of got is wasted too
	if r.Strict {
		nearer[0] = past
	} else if wasted > 0 {
		nearer[0] = over - want.Gap
	}
	if !r.Strict && got.N > 0 {
		nearer[1] = min(past, over)
	}
	start := want.Start + wasted*want.Gap
	switch {
	case start <= 0 && math.Abs(got.Start-start) > 1e-6:
		return false
	case start > 0 && got.Start > 0:
		nearer = [2]float64{max(nearer[0], start-got.Start), min(nearer[1], start-got.Start)}
	case start > 0:
		nearer[0] = max(nearer[0], start)
	}
	return wasted >= 0 && (wasted == 0 || !r.Strict) && nearer[0] <= nearer[1]+1e-6
}

// Check returns why the history is not linearizable, given the store's log of each key; nil if it
// is.
func (h *History) Check(logs map[string][]Version) error {
	history := slices.Clone(h.operations)
	logs = h.answered(logs)
	for key := range logs {
		history = append(history, porcupine.Operation{
			Input: operation{key: key}, Call: math.MaxInt64, Output: answer{}, Return: math.MaxInt64,
		})
	}
	model := porcupine.Model{
		Partition: byKey,
		Init:      func() any { return line{} },
		Step: func(state, in, out any) (bool, any) {
			o := in.(operation)
			return state.(line).step(logs[o.key], o, out.(answer))
		},
		Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
		Hash:  func(state any) uint64 { return uint64(state.(line).version) },
		DescribeOperation: func(in, out any) string {
			return describe(in.(operation), out.(answer))
		},
		DescribeState: func(state any) string {
			l := state.(line)
			return fmt.Sprintf("version %d: Seq %d, Last %.6f, Tail %.6f, Rate %g", l.version,
				l.state.Seq, l.state.Last, l.state.Tail, l.state.Rate)
		},
	}
	result, info := porcupine.CheckOperationsVerbose(model, history, time.Minute)
	if result == porcupine.Ok {
		return nil
	}
	return fmt.Errorf("history is not linearizable (%s): %s%s", result, h.longest(info, logs),
		picture(model, info))
}

// answered returns the logs with the versions whose replies are known. Without that, a request that
// failed could explain any version which only notes the time of a request.
func (h *History) answered(logs map[string][]Version) map[string][]Version {
	marked := map[string][]Version{}
	for key, log := range logs {
		marked[key] = slices.Clone(log)
		for _, v := range log {
			if v.restored > 0 {
				marked[key][v.restored-1].kept = true
			}
		}
	}
	for _, o := range h.operations {
		out := o.Output.(answer)
		if out.err != nil || out.reply.Late {
			continue
		}
		log, made := marked[o.Input.(operation).key], -1
		for i, v := range log {
			if !v.madeFor(out) {
				continue
			}
			if v.state.Last == out.reply.Now { // as Redis has it
				made = i
				break
			}
			if made >= 0 {
				made = len(log) // one of several
			} else {
				made = i
			}
		}
		if made >= 0 && made < len(log) {
			log[made].answered = true
		}
	}
	return marked
}

// madeFor reports whether the version may be the one that a request with this answer made: the
// answer says the time since the first request after the last silence exactly, and Redis also the
// time.
func (v Version) madeFor(out answer) bool {
	past := out.reply.Now - v.state.Last
	return v.state.Inc == out.reply.Carry.Inc && v.state.Last-v.state.Resumed == out.reply.Since &&
		past >= 0 && past <= out.took && (out.reply.N == 0 || v.state.Seq == out.reply.Carry.Seq)
}

func byKey(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	at := map[string]int{}
	for _, o := range history {
		key := o.Input.(operation).key
		i, ok := at[key]
		if !ok {
			i = len(parts)
			at[key], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], o)
	}
	return parts
}

// longest describes, of each key, the end of the longest order found, and which version then could
// not be explained.
func (h *History) longest(info porcupine.LinearizationInfo, logs map[string][]Version) string {
	var text strings.Builder
	for _, orders := range info.PartialLinearizationsOperations() {
		if len(orders) == 0 {
			continue
		}
		order := slices.MaxFunc(orders, func(a, b []porcupine.Operation) int { return len(a) - len(b) })
		l, key := line{}, order[0].Input.(operation).key
		for _, o := range order {
			_, l = l.step(logs[key], o.Input.(operation), o.Output.(answer))
		}
		if l.version == len(logs[key]) {
			writeLeft(&text, key, order, h.operations)
			continue
		}
		fmt.Fprintf(&text, "\n%s: no request explains version %+v, the %d. of %d; the last requests before:",
			key, logs[key][l.version], l.version+1, len(logs[key]))
		for _, o := range order[max(0, len(order)-5):] {
			fmt.Fprintf(&text, "\n\tclient %d, %v to %v: %s", o.ClientId, time.Duration(o.Call),
				time.Duration(o.Return), describe(o.Input.(operation), o.Output.(answer)))
		}
	}
	return text.String()
}

// writeLeft describes the first operations of a key that an order, which explains all versions, has
// no place for.
func writeLeft(text *strings.Builder, key string, order, all []porcupine.Operation) {
	left := 0
	for _, o := range all {
		in := o.Input.(operation)
		if in.key != key || slices.ContainsFunc(order, func(p porcupine.Operation) bool {
			return p.Input.(operation).request == in.request
		}) {
			continue
		}
		if left++; left > 5 {
			return
		}
		fmt.Fprintf(text, "\n%s: no place for a request of client %d, %v to %v: %s", key, o.ClientId,
			time.Duration(o.Call), time.Duration(o.Return), describe(in, o.Output.(answer)))
	}
}

// picture writes the history to a file for a browser, and names it.
func picture(model porcupine.Model, info porcupine.LinearizationInfo) string {
	file, err := os.CreateTemp("", "history-*.html")
	if err != nil {
		return fmt.Sprintf("\nno picture: %v", err)
	}
	defer file.Close()
	if err := porcupine.Visualize(model, info, file); err != nil {
		return fmt.Sprintf("\nno picture: %v", err)
	}
	return "\npicture for a browser: " + file.Name()
}

func describe(in operation, out answer) string {
	if in.request == nil {
		return "end"
	}
	r, p := in.request, out.reply
	asked := fmt.Sprintf("%s wants %g, returns %g, knows (%d, %d)", r.Subscription, r.Want, r.Returned,
		r.Carry.Inc, r.Carry.Seq)
	switch {
	case out.err != nil:
		return fmt.Sprintf("%s: %v", asked, out.err)
	case p.Late:
		return fmt.Sprintf("%s: late at %.6f", asked, p.Now)
	}
	return fmt.Sprintf("%s: %g from %+.6f at %.6f, (%d, %d)", asked, p.N, p.Start, p.Now, p.Carry.Inc,
		p.Carry.Seq)
}
