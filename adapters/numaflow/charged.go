package numaflowthrottle

import "sync"

// charged are the IDs that were charged last, so that a datum that the data plane sends again is
// not charged again.
type charged struct {
	mu   sync.Mutex
	ids  map[string]bool // false: to be charged again
	ring []string        // IDs in the order in which they came
	next int             // in ring, to be forgotten
}

// maxCharged is how many IDs are remembered.
const maxCharged = 10_000

func (c *charged) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

// set notes that an ID was charged, or is to be charged again.
func (c *charged) set(id string, charged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[string]bool{}
	}
	if _, known := c.ids[id]; !known {
		if len(c.ring) < maxCharged {
			c.ring = append(c.ring, id)
		} else {
			delete(c.ids, c.ring[c.next])
			c.ring[c.next] = id
			c.next = (c.next + 1) % maxCharged
		}
	}
	c.ids[id] = charged
}
