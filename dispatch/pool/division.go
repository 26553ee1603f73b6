package pool

import (
	"math"
	"slices"
)

const (
	// The parts of a TTL by which a group counts as present, see [Division.Visit].
	presentPart = 0.25 // of a TTL: a group's permits may be stolen until then after a visit
	lostTTLs    = 12.0 // TTLs after which a silent member is removed

	expiryAheads = 3.0 // permits expire this many Aheads after they have opened
	soonestPart  = 0.2 // of an Ahead: no member that found nothing comes again sooner
)

// Terms say how a limit is divided; they come from the policy.
type Terms struct {
	Names   []string `json:"names"`   // of the groups
	Permits int64    `json:"permits"` // of a period
	Period  float64  `json:"period"`  // seconds, > 0
	Keep    float64  `json:"keep"`    // the part of a group's share that others leave to it, 0..1
	Ahead   float64  `json:"ahead"`   // seconds by which permits open before their time
	TTL     float64  `json:"ttl"`     // seconds, > 0: see [Division.Visit]
}

// Lifetime returns how long a permit store must keep a division after its last visit, in seconds.
func (t Terms) Lifetime() float64 { return max(3600, 2*t.Period, lostTTLs*t.TTL) }

// MayGoOn reports whether a member may use its own group's permits without the permit store, which
// it has not reached for silent seconds. By then the other groups have noticed its silence, and
// have not removed it yet.
func (t Terms) MayGoOn(silent float64) bool {
	return silent > presentPart*t.TTL && silent < lostTTLs/2*t.TTL
}

// A Division is the permits of a limit divided over worker groups, period after period: what a
// permit store keeps under one key. The zero value is one without visits.
type Division struct {
	Clock  float64 `json:"clock"`  // its own time, seconds: the store's without steps back
	Last   float64 `json:"last"`   // the store's clock at the last visit
	Period int64   `json:"period"` // the present one's number
	Parts  []Part  `json:"parts,omitempty"`

	// Members are the times of the last visits, on Clock, by group and name; Asked those of the last
	// visits that wanted permits, by group.
	Members map[string]map[string]float64 `json:"members,omitempty"`
	Asked   map[string]float64            `json:"asked,omitempty"`
}

// A Part is what a group has of the present period.
type Part struct {
	Name  string  `json:"name"`
	Share int64   `json:"share"`          // of a whole period, by the present terms
	Used  int64   `json:"used"`           // drawn by any group, or expired
	Base  float64 `json:"base,omitempty"` // permits opened by earlier terms
	From  float64 `json:"from,omitempty"` // when the present terms began, as a part of the period
}

// A Visit is one request of a member.
type Visit struct {
	Group, Member string
	Want          int64 // permits; 0 only shows that the member is present
	Back          int64 // permits drawn in Period and not used
	Period        int64 // in which the member last drew, from [Drawn]
	Spent         int64 // the own group's permits, spent while the store was unavailable
	Leave         bool  // the member leaves: it wants nothing and is removed
}

// Drawn is the answer to a visit.
type Drawn struct {
	N      int64   // permits
	Own    int64   // of these, from the own group's
	Period int64   // they are of
	Again  float64 // seconds until there may be more; 0 = at once
	Known  bool    // the group is one of those of the limit

	Spacing float64 // seconds until its next visit, so that each group has the same part of all
}

// Visit serves one member's request at the store's time now, and returns the division to keep.
//
// Within a period, the permits of a group open evenly, Ahead of their time. Permits that no member
// has drawn expire three times Ahead after that, except one. So a divided limit is paced, too, and
// saves nothing up. A member that wants more permits than its own group has open steals permits
// that other groups have left beyond the keep-back. Of a group that requests permits, it steals
// only those not drawn until Ahead after their time.
//
// In a network partition, each side uses only its own permits. No permits are stolen from a group
// whose members have all been silent for a quarter of TTL. Such members may continue with their
// own group's permits, from a quarter of TTL after they lost the permit store. A member is removed
// after twelve TTL, and must have stopped after six. The permits of a group without members may be
// stolen.
//
// While the store's clock steps back, the division's clock stands still. If the terms change
// within a period, used permits stay used.
func (d Division) Visit(t Terms, v Visit, now float64) (Division, Drawn) {
	if d.Last > 0 {
		d.Clock += max(0, now-d.Last)
	}
	d.Last = now
	d = d.begin(t)
	d = d.see(t, v)
	for i := range d.Parts {
		if p := &d.Parts[i]; d.elapsed(t, -expiryAheads*t.Ahead) > p.From {
			p.Used = max(p.Used, d.due(t, *p, -expiryAheads*t.Ahead)-1)
		}
	}

	got := Drawn{Period: d.Period, Spacing: Spacing(len(d.Members) * len(d.Members[v.Group]))}
	own := slices.IndexFunc(d.Parts, func(p Part) bool { return p.Name == v.Group })
	if own < 0 {
		got.Again = t.TTL * presentPart
		return d, got
	}
	got.Known = true
	p := &d.Parts[own]
	if v.Period == d.Period {
		p.Used = max(0, p.Used-max(0, v.Back))
	}
	p.Used += max(0, v.Spent)
	if v.Want <= 0 || v.Leave {
		return d, got
	}
	open := d.open(t, v.Group)
	for i, n := range draw(open, min(max(0, t.Keep), 1), v.Group, v.Want) {
		j := slices.IndexFunc(d.Parts, func(p Part) bool { return p.Name == open[i].name })
		d.Parts[j].Used += n
		got.N += n
		if j == own {
			got.Own = n
		}
	}
	if got.N == 0 {
		got.Again = d.again(t, *p)
	}
	return d, got
}

// begin starts a period when it is due, and applies changed terms. Permits that have opened by
// then stay open, whichever group has drawn them. Permits that do not divide evenly move on to
// other groups with each period. The returned division shares no memory with d.
func (d Division) begin(t Terms) Division {
	period := int64(math.Floor(d.Clock / t.Period))
	names := slices.Compact(slices.Sorted(slices.Values(t.Names)))
	parts := make([]Part, len(names))
	for i, name := range names {
		p := Part{Name: name, Share: share(t.Permits, len(names), i, period)}
		j := slices.IndexFunc(d.Parts, func(o Part) bool { return o.Name == name })
		if j >= 0 && period == d.Period {
			if old := d.Parts[j]; old.Share == p.Share {
				p = old
			} else {
				p.Used, p.Base, p.From = old.Used, d.opened(t, old, 0), d.elapsed(t, 0)
			}
		} else if period == d.Period && len(d.Parts) > 0 {
			p.From = d.elapsed(t, 0) // a new group
		}
		parts[i] = p
	}
	d.Period, d.Parts = period, parts
	return d
}

// see records the visit, and removes members that have been silent for long.
func (d Division) see(t Terms, v Visit) Division {
	members, asked := map[string]map[string]float64{}, map[string]float64{}
	for _, b := range d.Parts {
		if at, ok := d.Asked[b.Name]; ok {
			asked[b.Name] = at
		}
		for name, seen := range d.Members[b.Name] {
			if d.Clock-seen <= lostTTLs*t.TTL && name != v.Member {
				members[b.Name] = with(members[b.Name], name, seen)
			}
		}
		if b.Name == v.Group && !v.Leave {
			members[b.Name] = with(members[b.Name], v.Member, d.Clock)
			if v.Want > 0 {
				asked[b.Name] = d.Clock
			}
		}
	}
	d.Members, d.Asked = members, asked
	return d
}

func with(m map[string]float64, name string, seen float64) map[string]float64 {
	if m == nil {
		m = map[string]float64{}
	}
	m[name] = seen
	return m
}

// open returns the permits that a group may draw now: those of each part that are due and not
// used, without those of silent groups.
func (d Division) open(t Terms, own string) (buckets []bucket) {
	for _, p := range d.Parts {
		ahead := t.Ahead
		if p.Name != own {
			if d.silent(t, p.Name) {
				continue
			}
			if at, ok := d.Asked[p.Name]; ok && d.Clock-at <= 3*t.Ahead {
				ahead = -t.Ahead
			}
		}
		due := d.due(t, p, ahead)
		buckets = append(buckets, bucket{name: p.Name, share: due, left: max(0, due-p.Used)})
	}
	return buckets
}

// elapsed returns the part of the period that is over, ahead seconds from now.
func (d Division) elapsed(t Terms, ahead float64) float64 {
	return max(0, min(1, (d.Clock-float64(float64(d.Period)*t.Period)+ahead)/t.Period))
}

// due returns how many of a part's permits have opened, ahead seconds from now.
func (d Division) due(t Terms, p Part, ahead float64) int64 {
	return int64(math.Ceil(d.opened(t, p, ahead) - 1e-9))
}

// opened is the same, with the part of the next permit that is over. Terms that change do not open
// the rest of it.
func (d Division) opened(t Terms, p Part, ahead float64) float64 {
	return p.Base + float64(float64(p.Share)*max(0, d.elapsed(t, ahead)-p.From))
}

// silent reports whether a group has members, none of which has visited lately.
func (d Division) silent(t Terms, group string) bool {
	for _, seen := range d.Members[group] {
		if d.Clock-seen <= presentPart*t.TTL {
			return false
		}
	}
	return len(d.Members[group]) > 0
}

// again returns the time until the group has its next permit, or until other groups' permits may
// be stolen if that is sooner. In the last Ahead of a period all its permits are open, so the next
// permit opens when it ends.
func (d Division) again(t Terms, own Part) float64 {
	elapsed := float64(d.elapsed(t, 0) * t.Period)
	end := t.Period - elapsed
	if end < t.Ahead {
		return max(end, t.Ahead*soonestPart)
	}
	next := end
	if own.Share > 0 {
		opens := float64((own.From + (float64(own.Used)-own.Base)/float64(own.Share)) * t.Period)
		next = min(next, opens-t.Ahead-elapsed)
	}
	return max(t.Ahead, min(next, t.Period/20))
}
