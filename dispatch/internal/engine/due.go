package engine

import "math"

// DueLanes are the lanes that have something to do, by when: a heap in which each entry has up to
// four below it, none of which is due before it. The times are beside the pointers, so that moves
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
	switch l.due = at; {
	case at == math.Inf(1):
		d.remove(l)
	case l.place < 0:
		*d = append(*d, dueLane{})
		d.rise(len(*d)-1, dueLane{at, l})
	default:
		d.move(l.place, dueLane{at, l})
	}
}

// remove takes a lane out, if it is there: the last one moves to its place.
func (d *dueLanes) remove(l *Lane) {
	if l.place < 0 {
		return
	}
	place, end := l.place, len(*d)-1
	last := (*d)[end]
	(*d)[end] = dueLane{}
	*d = (*d)[:end]
	if l.place = -1; place < end {
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
	l.lane.place = place
}
