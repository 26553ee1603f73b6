package cluster

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Condition says in one word how a topic or a subscription is.
type Condition string

// The conditions. That of a topic is the first that one of its subscriptions has, but stale is one
// only if all are.
const (
	Unavailable Condition = "unavailable" // calls wait for the permit store
	Throttled   Condition = "throttled"   // calls wait for a limit
	Paused      Condition = "paused"
	Flowing     Condition = "flowing"       // below its limits
	Unpublished Condition = "not published" // replicas have more subscriptions than they publish
	CaughtUp    Condition = "caught up"     // without a backlog; see also Uncounted
	Idle        Condition = "idle"
	Stale       Condition = "stale" // its replicas publish no more
)

// Conditions are all of them, by how much they ask for attention.
var Conditions = []Condition{Unavailable, Throttled, Paused, Stale, Flowing, Unpublished, CaughtUp, Idle}

// rank is the place of a condition in Conditions.
func (c Condition) rank() int { return slices.Index(Conditions, c) }

// A Row is what an overview shows of a topic. It is unknown whether the topic has a limit if Limit
// is zero, and Several and Unlimited are false. It is unknown whether the topic is behind if
// BehindSince is zero and NotBehind is false.
type Row struct {
	Topic         string            `json:"topic"`
	Condition     Condition         `json:"condition"`
	Since         time.Time         `json:"since,omitzero"`      // stale
	Limit         Limit             `json:"limit,omitzero"`      // that all subscriptions share
	Several       bool              `json:"several,omitempty"`   // all have limits, but share none
	Unlimited     bool              `json:"unlimited,omitempty"` // none has a limit
	Rate          Number            `json:"rate"`                // permits of that limit a second
	Uncounted     bool              `json:"uncounted,omitempty"` // no subscription is charged to it
	Waiting       Number            `json:"waiting"`             // calls
	Backlog       Number            `json:"backlog"`             // messages
	BehindSince   time.Time         `json:"behindSince,omitzero"`
	NotBehind     bool              `json:"notBehind,omitempty"`
	DrainedIn     Number            `json:"drainedIn"`            // seconds; 0 = not behind
	WaitP99       Number            `json:"waitP99"`              // seconds, of calls that had to wait
	WaitLonger    bool              `json:"waitLonger,omitempty"` // than WaitP99
	Replicas      int               `json:"replicas"`
	Subscriptions []SubscriptionRow `json:"subscriptions"`
	More          int               `json:"more,omitempty"`       // subscriptions left out
	Aggregates    []Aggregate       `json:"aggregates,omitempty"` // that it has; of one topic only
}

// A SubscriptionRow is what an overview shows of a subscription's messages with one owner.
type SubscriptionRow struct {
	Subscription string          `json:"subscription"`
	Owner        string          `json:"owner,omitempty"`
	Condition    Condition       `json:"condition"`
	Since        time.Time       `json:"since,omitzero"`   // stale
	Reason       dispatch.Reason `json:"reason,omitempty"` // why calls wait
	Limit        Limit           `json:"limit,omitzero"`
	Unlimited    bool            `json:"unlimited,omitempty"`
	Rate         Number          `json:"rate"`
	Uncounted    bool            `json:"uncounted,omitempty"` // messages are not charged to the limit
	Share        Number          `json:"share"`               // of the topic's rate, 0 to 1
	Requests     Number          `json:"requests"`            // to the permit store, a second
	Backlog      Number          `json:"backlog"`
	BehindSince  time.Time       `json:"behindSince,omitzero"`
	NotBehind    bool            `json:"notBehind,omitempty"`
	DrainedIn    Number          `json:"drainedIn"`
	WaitP99      Number          `json:"waitP99"`
	WaitLonger   bool            `json:"waitLonger,omitempty"`
	Waiting      Number          `json:"waiting"`
	Replicas     int             `json:"replicas"`
	Operands     *Operands       `json:"operands,omitempty"` // of one topic only

	key      string // of the limit
	measured Number // in permits of the topic's limit, not smoothed, for plots
}

// A Limit is the limit that a rate is shown against.
type Limit struct {
	Reason dispatch.Reason `json:"limit"`
	Rate   float64         `json:"rate"`             // permits a second now, as on a ramp
	Shadow bool            `json:"shadow,omitempty"` // messages do not wait for it
}

// A Number may be unknown: it is null in JSON then.
type Number float64

// Unknown is a number that is not known.
var Unknown = Number(math.NaN())

// Known reports whether the number is known.
func (n Number) Known() bool { return !math.IsNaN(float64(n)) }

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Known() || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(text []byte) error {
	*n = Unknown
	if string(text) == "null" {
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}

// A sum is of numbers that all have to be known; without any, it is unknown.
type sum struct {
	total float64
	n     int
}

func (s *sum) add(x float64) {
	s.total += x
	s.n++
}

func (s *sum) number() Number {
	if s.n == 0 {
		return Unknown
	}
	return Number(s.total)
}

// Most returns the larger number, of which one may be unknown.
func (n Number) Most(m Number) Number {
	if !n.Known() || m > n {
		return m
	}
	return n
}

// look brings the row of a topic to now.
func (t *topic) look(name string, now time.Time) {
	row := Row{
		Topic: name, Condition: Stale, Rate: Unknown, Waiting: Unknown, Backlog: Unknown, DrainedIn: Unknown, WaitP99: Unknown,
		Subscriptions: t.row.Subscriptions[:0],
	}
	var shared sharedLimits
	partitions := reportPartitions(name)
	for _, g := range t.groups {
		s := g.look(partitions)
		if s.Condition != Stale {
			g.estimate.addBacklog(s.Backlog, now)
			shared.narrow(&s, g.parts)
			for _, p := range g.parts {
				if p.live() && p.replica.counted != t {
					p.replica.counted = t
					row.Replicas++
				}
			}
			if s.Condition != Unpublished {
				s.WaitP99, s.WaitLonger = g.estimate.waitP99(now)
			}
			if !s.NotBehind {
				s.DrainedIn = g.estimate.drainedIn()
			}
		}
		row.add(s)
	}
	for _, g := range t.groups {
		for _, p := range g.parts {
			p.replica.counted = nil
		}
	}
	if len(t.groups) == 0 {
		row.Condition = Idle
	}
	row.Backlog = t.backlog(row.Subscriptions, partitions)
	t.row = row
	t.count(&shared)
}

// reportPartitions reports whether consumers of a topic report the backlogs of their partitions.
func reportPartitions(topic string) bool {
	return strings.HasPrefix(topic, string(policy.Kafka)+"://")
}

// backlog returns the sum over subscriptions, of which several owners share that of one.
func (t *topic) backlog(rows []SubscriptionRow, partitions bool) Number {
	var total sum
	for i := 0; i < len(rows); {
		end := i + 1
		for end < len(rows) && rows[end].Subscription == rows[i].Subscription {
			end++
		}
		of, known := ownersBacklog(rows[i:end], t.groups[i:end], partitions)
		if known {
			total.add(float64(of))
		}
		i = end
	}
	return total.number()
}

// ownersBacklog returns the backlog of a subscription with several owners. Consumers of Kafka
// report their partitions for each owner that they have; others report the whole. It has none to
// speak of if nothing is published, or if what is unknown is caught up.
func ownersBacklog(rows []SubscriptionRow, groups []*group, partitions bool) (n Number, ok bool) {
	if partitions && len(rows) > 1 {
		largest := map[*replica]float64{}
		for _, g := range groups {
			for _, p := range g.parts {
				if b := float64(p.last.Backlog); p.live() && b >= largest[p.replica] {
					largest[p.replica] = b
				}
			}
		}
		for _, b := range largest {
			n += Number(b)
		}
		return n, len(largest) > 0
	}
	n = Unknown
	for i := range rows {
		if r := &rows[i]; r.Condition != Stale && (r.Backlog.Known() || r.Condition != CaughtUp) {
			n, ok = n.Most(r.Backlog), true
		}
	}
	return n, ok
}

// sharedLimits are those that all subscriptions with limits have.
type sharedLimits struct {
	any      bool // some subscription has limits
	messages bool // some has one of messages
	limits   []limit
}

// narrow takes a further subscription into account.
func (sl *sharedLimits) narrow(s *SubscriptionRow, parts []*part) {
	i := slices.IndexFunc(parts, func(p *part) bool { return p.live() && p.shown >= 0 })
	if i < 0 {
		return
	}
	p := parts[i]
	sl.messages = sl.messages || !s.Limit.Reason.Bytes()
	foreign := func(l limit) bool { return indexOf(p.last.Limits, l.Key) < 0 }
	switch {
	case !sl.any:
		sl.any, sl.limits = true, p.last.Limits
	case slices.ContainsFunc(sl.limits, foreign):
		sl.limits = slices.DeleteFunc(slices.Clone(sl.limits), foreign)
	}
}

// count fills in the limit and the rates of the row. The rates are those of the limit, or else
// those that subscriptions have of their own limits of messages, if there are some.
func (t *topic) count(shared *sharedLimits) {
	r, limits := &t.row, shared.limits
	if len(limits) > 1 { // one to which some subscription is charged is shown before others
		limits = slices.Clone(limits)
		for i := range limits {
			limits[i].Bypassed = !t.charges(limits[i].Key)
		}
	}
	shown := shownOf(limits)
	if shown >= 0 {
		r.Limit = limits[shown].view()
	} else {
		r.Several, r.Unlimited = shared.any, r.Replicas > 0 && !shared.any
	}
	var total sum
	for i := range r.Subscriptions {
		s := &r.Subscriptions[i]
		key := s.key
		if shown >= 0 {
			key = limits[shown].Key
		} else if shared.messages == s.Limit.Reason.Bytes() {
			continue
		}
		var rate, measured sum
		for _, p := range t.groups[i].parts {
			if of, ok := p.counted(key); ok {
				rate.add(of.smoothed)
				measured.add(of.measured)
				total.add(of.smoothed)
			}
		}
		s.Share, s.measured = rate.number(), measured.number()
	}
	r.Rate, r.Uncounted = total.number(), r.Replicas > 0 && total.n == 0
	for i := range r.Subscriptions {
		if s := &r.Subscriptions[i]; r.Rate > 0 {
			s.Share /= r.Rate
		} else {
			s.Share = Unknown
		}
	}
}

// charges reports whether messages are charged to a limit.
func (t *topic) charges(key string) bool {
	return slices.ContainsFunc(t.groups, func(g *group) bool {
		return slices.ContainsFunc(g.parts, func(p *part) bool {
			_, ok := p.counted(key)
			return ok
		})
	})
}

// view is what a row has of a limit.
func (l *limit) view() Limit { return Limit{l.Reason, l.now(), l.Shadow} }

// label names the subscription and owner.
func (s *SubscriptionRow) label() string {
	if s.Owner == "" {
		return s.Subscription
	}
	return s.Subscription + " " + s.Owner
}

// used is the part of the limit that is used.
func (r *Row) used() Number {
	if r.Limit.Rate == 0 {
		return Unknown
	}
	return r.Rate / Number(r.Limit.Rate)
}

// add adds a subscription. A topic is behind if one of them is, and drained when the last one is.
func (r *Row) add(s SubscriptionRow) {
	if s.Condition != Stale {
		if r.Condition == Stale { // it is the first that is not
			r.Waiting, r.DrainedIn, r.NotBehind = 0, 0, true
		}
		r.Waiting += s.Waiting // a part that is unknown makes the whole unknown
		r.DrainedIn = max(r.DrainedIn, s.DrainedIn)
		r.NotBehind = r.NotBehind && s.NotBehind
		if r.BehindSince.IsZero() || !s.BehindSince.IsZero() && s.BehindSince.Before(r.BehindSince) {
			r.BehindSince = s.BehindSince
		}
	}
	r.WaitP99, r.WaitLonger = r.WaitP99.Most(s.WaitP99), r.WaitLonger || s.WaitLonger
	switch {
	case r.Condition == Stale:
		r.Condition = s.Condition
	case s.Condition != Stale && s.Condition.rank() < r.Condition.rank():
		r.Condition = s.Condition
	}
	if r.Condition == Stale && s.Since.After(r.Since) {
		r.Since = s.Since
	} else if r.Condition != Stale {
		r.Since = time.Time{}
	}
	r.Subscriptions = append(r.Subscriptions, s)
}

// look returns what the parts say. The backlog is the sum of theirs, or else the largest.
func (g *group) look(sumBacklog bool) SubscriptionRow {
	s := SubscriptionRow{
		Subscription: g.subscription, Owner: g.owner, Rate: Unknown, Share: Unknown, Requests: Unknown,
		Backlog: Unknown, DrainedIn: Unknown, WaitP99: Unknown, Waiting: Unknown, measured: Unknown,
	}
	var shown *limit
	var rate, requests, backlog, waiting sum
	caughtUp, leftOut, behindSince := true, true, int64(0)
	for _, p := range g.parts {
		if !p.live() {
			if s.Since.Before(p.replica.gone) {
				s.Since = p.replica.gone
			}
			continue
		}
		l := &p.last
		s.Replicas++
		if waiting.add(float64(l.Waiting)); p.leftOut {
			waiting.add(math.NaN())
		}
		caughtUp, leftOut = caughtUp && l.CaughtUp, leftOut && p.leftOut
		if l.Waiting > 0 || s.Reason == "" {
			s.Reason = l.Reason
		}
		if p.shown >= 0 && (shown == nil || l.Limits[p.shown].before(shown)) {
			shown = &l.Limits[p.shown]
		}
		if l.Backlog < 0 {
			backlog.add(math.NaN())
		} else {
			backlog.add(float64(l.Backlog))
			s.Backlog = s.Backlog.Most(Number(l.Backlog))
		}
		if l.BehindSince > 0 && (behindSince == 0 || l.BehindSince < behindSince) {
			behindSince = l.BehindSince
		}
		switch {
		case l.Waiting > 0 && l.Reason == dispatch.ReasonPermits:
			s.Condition = Unavailable
		case s.Condition == Unavailable:
		case l.Paused:
			s.Condition = Paused
		case s.Condition == "" && (l.Waiting > 0 || p.waited):
			s.Condition = Throttled
		}
	}
	if s.Replicas == 0 {
		s.Condition = Stale
		return s
	}
	if shown != nil {
		s.Limit, s.key = shown.view(), shown.Key
		for _, p := range g.parts {
			if of, ok := p.counted(s.key); ok {
				rate.add(of.smoothed)
				requests.add(p.requests)
			}
		}
	}
	s.Since, s.Rate, s.Requests, s.Uncounted = time.Time{}, rate.number(), requests.number(), rate.n == 0
	if sumBacklog {
		s.Backlog = backlog.number()
	}
	s.Waiting, s.Unlimited = waiting.number(), shown == nil
	if behindSince > 0 {
		s.BehindSince = time.UnixMilli(behindSince)
	} else if s.NotBehind = caughtUp || s.Backlog.Known(); s.NotBehind {
		s.DrainedIn = 0
	}
	switch {
	case s.Condition != "":
	case caughtUp:
		s.Condition = CaughtUp
	case leftOut:
		s.Condition = Unpublished
	case s.Rate == 0:
		s.Condition = Idle
	default:
		s.Condition = Flowing
	}
	return s
}
