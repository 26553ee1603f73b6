package engine

import "math"

// A dueTime is when a lane is stepped next. Engine.mu guards it.
type dueTime struct {
	at    float64
	heap  *dueLanes // that the lane is in, or was
	place int       // there; -1 = in none
}

// An agenda is when the lanes of an engine are stepped next.
type agenda struct {
	lanes dueLanes
	paced dueLanes // those with strict limits, which are not stepped a tick late
}

// set sets when a lane is stepped next; +Inf = not until it is touched.
func (a *agenda) set(l *Lane, at float64) {
	lanes := &a.lanes
	if l.shares.inForce.paced != nil {
		lanes = &a.paced
	}
	if l.due.heap != lanes && l.due.heap != nil {
		l.due.heap.remove(l)
	}
	l.due.heap = lanes
	lanes.set(l, at)
}

// dueLanes are lanes that have something to do, by when: a heap in which each lane has up to four
// below it. None of the four is due before it. The times are beside the pointers, so that moves
// do not read the lanes, of which there may be many.
type dueLanes []dueLane

type dueLane struct {
	at   float64
	lane *Lane
}

// next is when the first lane is due, +Inf if there is none.
func (d dueLanes) next() float64 {
	if len(d) == 0 {
		return math.Inf(1)
	}
	return d[0].at
}

// set sets when a lane is due; +Inf takes it out.
func (d *dueLanes) set(l *Lane, at float64) {
	l.due.at = at
	switch {
	case at == math.Inf(1):
		d.remove(l)
	case l.due.place < 0:
		*d = append(*d, dueLane{})
		d.rise(len(*d)-1, dueLane{at, l})
	default:
		d.move(l.due.place, dueLane{at, l})
	}
}

// remove takes a lane out, if it is there: the last one moves to its place.
func (d *dueLanes) remove(l *Lane) {
	if l.due.place < 0 {
		return
	}
	place, end := l.due.place, len(*d)-1
	last := (*d)[end]
	(*d)[end] = dueLane{}
	*d = (*d)[:end]
	l.due.place = -1
	if place < end {
		d.move(place, last)
	}
}

// move puts a lane where it belongs, seen from a place that is free.
func (d dueLanes) move(place int, l dueLane) {
	if place > 0 && l.at < d[(place-1)/4].at {
		d.rise(place, l)
	} else {
		d.sink(place, l)
	}
}

// rise puts a lane at a free place or above it.
func (d dueLanes) rise(place int, l dueLane) {
	for place > 0 {
		above := (place - 1) / 4
		if d[above].at <= l.at {
			break
		}
		d.put(place, d[above])
		place = above
	}
	d.put(place, l)
}

// sink puts a lane at a free place or below it.
func (d dueLanes) sink(place int, l dueLane) {
	for 4*place+1 < len(d) {
		first := 4*place + 1
		for i := first + 1; i < min(4*place+5, len(d)); i++ {
			if d[i].at < d[first].at {
				first = i
			}
		}
		if l.at <= d[first].at {
			break
		}
		d.put(place, d[first])
		place = first
	}
	d.put(place, l)
}

func (d dueLanes) put(place int, l dueLane) {
	d[place] = l
	l.lane.due.place = place
}
