package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Reader keeps a State up to date from a permit store: with the records of what is on view at
// each read, and with the others within ten reads. Any number of goroutines may use it.
type Reader struct {
	store   dispatch.PermitStore
	cluster string
	every   time.Duration
	ask     func(context.Context) error // the policy store; nil = nobody asks it

	turn int             // of the records that are not on view; used by Run only
	bad  map[string]bool // replicas whose records could not be read last; likewise
	why  error           // why that of one of them cannot be; nil if there is none

	mu       sync.Mutex // guards the fields below
	state    *State
	opened   map[string]time.Time // topics on view by themselves, until then
	listed   map[string]time.Time // topics in an overview on view, until then
	status   Status
	records  int // of the last read
	replicas int // with a record then
}

// A Status says how well a Reader can read.
type Status struct {
	Outage            // of the permit store
	Unread     bool   `json:"unread,omitempty"`     // nothing has been read yet
	Unreadable string `json:"unreadable,omitempty"` // why a status record cannot be read
	Policies   Outage `json:"policies,omitzero"`    // of the policy store; see AskPolicies
}

const (
	within    = 10     // reads after which each record has been read
	atOnce    = 10_000 // subscriptions of one read for what is on view, and of one for the others
	viewedFor = 5 * time.Second
)

// NewReader returns a Reader of a cluster, which Run keeps up to date: it reads after each time of
// every, which is at least a second.
func NewReader(store dispatch.PermitStore, cluster string, every time.Duration) *Reader {
	return &Reader{
		store: store, cluster: cluster, every: every, state: NewState(), status: Status{Unread: true},
		bad: map[string]bool{}, opened: map[string]time.Time{}, listed: map[string]time.Time{},
	}
}

// ReadAll has each read bring the records of all replicas, and all topics to now. It is to be
// called before Run.
func (r *Reader) ReadAll() { r.state.whole = true }

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	if r.ask != nil {
		asking.Go(func() { r.followPolicies(ctx) })
	}
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		r.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// read reads once.
func (r *Reader) read(ctx context.Context) {
	names, err := r.store.Publishers(ctx, r.cluster)
	due := r.due(names)
	var texts [][]byte
	if err == nil {
		texts, err = r.store.PublishedBy(ctx, r.cluster, due)
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	records := r.parse(texts)
	if err == nil {
		r.judge(names, due, records)
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = len(records)
	for _, s := range records {
		r.state.Add(s, now)
	}
	r.status.note(err, now)
	if err != nil {
		return
	}
	r.status.Unread, r.status.Unreadable, r.replicas = false, r.unreadable(), len(names)
	r.state.Present(slices.DeleteFunc(names, func(name string) bool { return r.bad[name] }), now)
	r.state.Tick(now, r.onView(now))
}

func (r *Reader) parse(texts [][]byte) (records []Record) {
	for _, text := range texts {
		s, err := Parse(text)
		if err != nil {
			r.why = err
			continue
		}
		records = append(records, s)
	}
	return records
}

// judge notes which of the records that were due could not be read. Its replica is stale then.
func (r *Reader) judge(names, due []string, records []Record) {
	read := make(map[string]bool, len(records))
	for _, s := range records {
		read[s.Replica] = true
	}
	for _, name := range due {
		if r.bad[name] = !read[name]; !r.bad[name] {
			delete(r.bad, name)
		}
	}
	maps.DeleteFunc(r.bad, func(name string, _ bool) bool {
		_, found := slices.BinarySearch(names, name) // due has sorted them
		return !found
	})
	if len(r.bad) == 0 {
		r.why = nil
	}
}

// unreadable tells which records could not be read last.
func (r *Reader) unreadable() string {
	if r.why == nil {
		return ""
	}
	text := "the status record of " + slices.Min(slices.Collect(maps.Keys(r.bad)))
	if more := len(r.bad) - 1; more > 0 {
		text += fmt.Sprintf(", and those of %d more replicas", more)
	}
	return fmt.Sprintf("%s: %v", text, r.why)
}

// due returns the replicas to read now: those that have not been read, those with topics on view,
// and of the others as many as it takes to read each within ten reads. Of what is on view, that
// comes first which was read longest ago, if it is too much for one read.
func (r *Reader) due(names []string) (due []string) {
	slices.Sort(names)
	if r.state.whole {
		return names
	}
	wanted := map[string]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if r.state.replicas[name] == nil && !r.bad[name] {
			wanted[name] = true
		}
	}
	left := atOnce
	for _, views := range []map[string]time.Time{r.opened, r.listed} {
		for _, name := range r.state.longestUnread(views) {
			if left > 0 && !wanted[name] {
				wanted[name] = true
				left -= r.state.size(name)
			}
		}
	}
	left = atOnce
	for n := range names {
		if n >= (len(names)+within-1)/within && left <= 0 {
			break
		}
		r.turn = (r.turn + 1) % len(names)
		wanted[names[r.turn]] = true
		left -= r.state.size(names[r.turn])
	}
	for _, name := range names {
		if wanted[name] {
			due = append(due, name)
		}
	}
	return due
}

// onView returns the topics that are still on view, and forgets the others.
func (r *Reader) onView(now time.Time) map[string]bool {
	topics := map[string]bool{}
	for _, views := range []map[string]time.Time{r.opened, r.listed} {
		for name, until := range views {
			if now.After(until) {
				delete(views, name)
			} else {
				topics[name] = true
			}
		}
	}
	return topics
}

// Overview returns a page of topics, which are on view for the next seconds.
func (r *Reader) Overview(q Query) (Overview, Status) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.state.Overview(q, now)
	for _, row := range o.Rows {
		r.listed[row.Topic] = now.Add(viewedFor)
	}
	return o, r.status
}

// Topic returns the row of a topic with its operands, which is on view for the next seconds; ok is
// false if no replica has published it in the last hour.
func (r *Reader) Topic(name string) (row Row, status Status, ok bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.state.topics[name]
	if t == nil {
		return Row{}, r.status, false
	}
	r.opened[name] = now.Add(viewedFor)
	return r.state.opened(name, t), r.status, true
}

// Points returns the points of a topic of the last hour after a time, in Unix seconds.
func (r *Reader) Points(name string, since int64) Points {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Points(name, since, time.Now())
}

// Status returns how well the permit store can be read.
func (r *Reader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// A Cost is what following a cluster takes.
type Cost struct {
	Points   int // bytes of all points, about
	Records  int // read last
	Replicas int // with a record
}

// Cost returns the present cost.
func (r *Reader) Cost() Cost {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Cost{r.state.memory, r.records, r.replicas}
}
