package franzthrottle

import (
	"maps"
	"regexp"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A direct is what a client without a group reads, as its options and calls say: kgo does not tell.
type direct struct {
	mu     sync.Mutex
	topics map[string]*assigned
}

// assigned are the partitions of a topic that a client reads: some, or all but for some.
type assigned struct {
	starts  map[int32]kgo.Offset // of those that were assigned one by one
	whole   bool                 // all others are read, too,
	removed map[int32]bool       // but those that were removed last
}

// newDirect returns what options say.
func newDirect(topics map[string]*regexp.Regexp, partitions map[string]map[int32]kgo.Offset) *direct {
	d := &direct{topics: map[string]*assigned{}}
	d.add(partitions)
	d.addTopics(slices.Collect(maps.Keys(topics)))
	return d
}

// topic returns what is read of a topic: nothing, if it is new. The caller holds d.mu.
func (d *direct) topic(name string) *assigned {
	a := d.topics[name]
	if a == nil {
		a = &assigned{map[int32]kgo.Offset{}, false, map[int32]bool{}}
		d.topics[name] = a
	}
	return a
}

func (d *direct) add(partitions map[string]map[int32]kgo.Offset) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, starts := range partitions {
		maps.Copy(d.topic(name).starts, starts)
	}
}

// addTopics adds all partitions of topics, but of those of which partitions were added one by one:
// kgo leaves these as they are.
func (d *direct) addTopics(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if a := d.topic(name); len(a.starts) == 0 {
			a.whole = true
			clear(a.removed)
		}
	}
}

func (d *direct) remove(partitions map[string][]int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, ids := range partitions {
		a := d.topic(name)
		for _, id := range ids {
			delete(a.starts, id)
			a.removed[id] = true
		}
	}
}

func (d *direct) removeTopics(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.topics, name)
	}
}

// of returns the partitions of a topic that were assigned one by one, and which others are read;
// nil = none.
func (d *direct) of(topic string) (ids []int32, others func(id int32) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.topics[topic]
	if a == nil {
		return nil, nil
	}
	ids = slices.Collect(maps.Keys(a.starts))
	if a.whole {
		removed := maps.Clone(a.removed)
		others = func(id int32) bool { return !removed[id] && !slices.Contains(ids, id) }
	}
	return ids, others
}

// start returns where a partition that was assigned on its own begins.
func (d *direct) start(p partition) (offset kgo.Offset, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.topics[p.topic]; a != nil {
		offset, found = a.starts[p.id]
	}
	return offset, found
}
