package numaflowthrottle

import lru "github.com/hashicorp/golang-lru/v2"

// charged are the IDs that were charged last, so that a datum that the data plane sends again is
// not charged again.
type charged struct {
	ids *lru.Cache[string, struct{}]
}

// maxCharged is how many IDs are remembered.
const maxCharged = 10_000

func newCharged() charged {
	ids, _ := lru.New[string, struct{}](maxCharged) // fails only for a size of 0
	return charged{ids}
}

func (c charged) has(id string) bool { return c.ids.Contains(id) }

// set notes that an ID was charged, or is to be charged again.
func (c charged) set(id string, charged bool) {
	if charged {
		c.ids.Add(id, struct{}{})
	} else {
		c.ids.Remove(id)
	}
}
