package cluster

import (
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Operands are what the numbers of a subscription are computed from.
type Operands struct {
	Limits []Candidate `json:"limits"` // all that it has, of which one is shown
	Parts  []Operand   `json:"parts"`  // what replicas say
	Summed bool        `json:"summed"` // the backlog is the sum of theirs, and else the largest
	Waits  []Waits     `json:"waits"`  // that ended in the last minute, the shortest first
	Trend  *Trend      `json:"trend"`  // of the backlog; null if it is not known to shrink
}

// A Candidate is a limit that may be the one that is shown.
type Candidate struct {
	Limit
	Bypassed bool `json:"bypassed,omitempty"` // nothing is charged to it
}

// An Operand is what one replica says of a subscription, or what several say together.
type Operand struct {
	Replica  string `json:"replica,omitempty"` // of several: ""
	Replicas int    `json:"replicas"`
	Counted  bool   `json:"counted"` // messages are charged to the limit that is shown
	Permits  Number `json:"permits"` // of that limit, which were used between the last two records
	Seconds  Number `json:"seconds"` // between these
	Rate     Number `json:"rate"`    // permits a second, smoothed
	Waiting  Number `json:"waiting"` // calls
	Backlog  Number `json:"backlog"` // messages
}

// Waits are N of some lengths.
type Waits struct {
	Most Number `json:"most"` // seconds; unknown of those that are longer than all others
	N    int64  `json:"n"`
}

// A Trend is the line of least squares of a backlog.
type Trend struct {
	Backlog   float64 `json:"backlog"`   // messages, at its end
	PerSecond float64 `json:"perSecond"` // by which it shrinks
	Seconds   float64 `json:"seconds"`   // that it is of
}

// The replicas that are told apart: of one subscription, and of all of a topic together, if it has
// not more subscriptions than that.
const (
	maxOperands      = 20
	maxTopicOperands = 200
)

// operands returns those of a subscription, of which key is the limit that is shown.
func (g *group) operands(key string, most int, partitions bool) *Operands {
	o := &Operands{Parts: []Operand{}, Limits: []Candidate{}, Waits: []Waits{}, Summed: partitions, Trend: g.estimate.trend()}
	for _, p := range g.parts {
		if p.live() {
			if len(o.Limits) == 0 {
				for i := range p.last.Limits {
					o.Limits = append(o.Limits, Candidate{p.last.Limits[i].view(), p.last.Limits[i].Bypassed})
				}
			}
			o.Parts = append(o.Parts, p.operand(key))
		}
	}
	slices.SortFunc(o.Parts, func(a, b Operand) int { return strings.Compare(a.Replica, b.Replica) })
	if len(o.Parts) > most {
		o.Parts = append(o.Parts[:most-1], together(o.Parts[most-1:], partitions))
	}
	waits := g.estimate.all()
	for i, n := range waits.Buckets {
		most := Unknown
		if i < len(dispatch.WaitBuckets) {
			most = Number(dispatch.WaitBuckets[i].Seconds())
		}
		if n > 0 {
			o.Waits = append(o.Waits, Waits{most, n})
		}
	}
	return o
}

func (p *part) operand(key string) Operand {
	o := Operand{
		Replica: p.replica.last.Replica, Replicas: 1, Permits: Unknown, Seconds: Unknown, Rate: Unknown,
		Waiting: Number(p.last.Waiting), Backlog: Number(p.last.Backlog),
	}
	if of, ok := p.counted(key); ok {
		o.Counted, o.Rate = true, Number(of.smoothed)
		if p.passed > 0 {
			o.Permits, o.Seconds = Number(of.measured*p.passed), Number(p.passed)
		}
	}
	if p.leftOut {
		o.Waiting = Unknown
	}
	if p.last.Backlog < 0 {
		o.Backlog = Unknown
	}
	return o
}

// together returns what several replicas say together.
func together(all []Operand, sumBacklog bool) Operand {
	t := Operand{Permits: Unknown, Seconds: Unknown, Backlog: Unknown}
	var rate, backlog sum
	for _, o := range all {
		t.Replicas++
		t.Waiting += o.Waiting
		if o.Counted {
			t.Counted = true
			rate.add(float64(o.Rate))
		}
		backlog.add(float64(o.Backlog))
		t.Backlog = t.Backlog.Most(o.Backlog)
	}
	if t.Rate = rate.number(); sumBacklog {
		t.Backlog = backlog.number()
	}
	return t
}
