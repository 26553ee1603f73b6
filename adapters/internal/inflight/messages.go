// Package inflight tracks messages that were handed over and are not settled, where a policy
// has a maxInFlight.
package inflight

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Messages are messages in flight, by partition and in the order of their IDs, each with the
// Grant that counts it. A message leaves when it is settled, so that its Grant is Done. Any
// number of goroutines may use it at once. Use [New].
type Messages[P comparable, ID any] struct {
	compare func(a, b ID) int

	some       atomic.Bool // spares the lock where no policy has a maxInFlight
	mu         sync.Mutex
	partitions map[P][]message[ID] // in the order of their IDs
}

type message[ID any] struct {
	id    ID
	bytes int64
	grant dispatch.Grant
}

// New returns an empty set of messages whose IDs compare orders.
func New[P comparable, ID any](compare func(a, b ID) int) *Messages[P, ID] {
	return &Messages[P, ID]{compare: compare, partitions: map[P][]message[ID]{}}
}

// Empty reports whether no message is in flight. It costs one atomic load.
func (m *Messages[P, ID]) Empty() bool { return !m.some.Load() }

// Add adds a message of a partition, which took the permits of grant. A message that is delivered
// again replaces its earlier delivery, which is settled.
func (m *Messages[P, ID]) Add(partition P, id ID, bytes int64, grant dispatch.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settle(partition, id, id)
	messages := m.partitions[partition]
	m.partitions[partition] = slices.Insert(messages, m.first(messages, id),
		message[ID]{id, bytes, grant})
	m.some.Store(true)
}

// Withdraw removes a message that was not used after all: its permits go back. It reports whether
// the message was in flight.
func (m *Messages[P, ID]) Withdraw(partition P, id ID) bool {
	if m.Empty() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.take(partition, id, id)
	for _, withdrawn := range taken {
		withdrawn.grant.Done(0, 0)
	}
	return len(taken) > 0
}

// Settle settles the messages from one ID to another, both included, of every partition.
func (m *Messages[P, ID]) Settle(from, to ID) {
	if m.Empty() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for partition := range m.partitions {
		m.settle(partition, from, to)
	}
}

// SettleThrough settles the messages up to an ID, which is included, of the partitions for which in
// returns true.
func (m *Messages[P, ID]) SettleThrough(id ID, in func(P) bool) {
	if m.Empty() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for partition, messages := range m.partitions {
		if in(partition) {
			m.settle(partition, messages[0].id, id)
		}
	}
}

// SettleAll settles all messages.
func (m *Messages[P, ID]) SettleAll() {
	if m.Empty() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for partition, messages := range m.partitions {
		m.settle(partition, messages[0].id, messages[len(messages)-1].id)
	}
}

// Find returns the partition that the message with an ID is of, if it is in flight.
func (m *Messages[P, ID]) Find(id ID) (partition P, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for partition, messages := range m.partitions {
		if i := m.first(messages, id); i < len(messages) && m.compare(messages[i].id, id) == 0 {
			return partition, true
		}
	}
	return partition, false
}

// settle settles the messages from one ID to another. The caller holds m.mu.
func (m *Messages[P, ID]) settle(partition P, from, to ID) {
	for _, settled := range m.take(partition, from, to) {
		settled.grant.Done(1, settled.bytes)
	}
}

// take removes the messages from one ID to another, and returns them. The caller holds m.mu.
func (m *Messages[P, ID]) take(partition P, from, to ID) []message[ID] {
	messages := m.partitions[partition]
	begin := m.first(messages, from)
	end := begin
	for end < len(messages) && m.compare(messages[end].id, to) <= 0 {
		end++
	}
	taken := slices.Clone(messages[begin:end])
	switch {
	case len(taken) == len(messages):
		delete(m.partitions, partition)
	case begin == 0: // the usual case: messages are settled in their order
		clear(messages[:end])
		m.partitions[partition] = messages[end:]
	default:
		m.partitions[partition] = slices.Delete(messages, begin, end)
	}
	m.some.Store(len(m.partitions) > 0)
	return taken
}

// first returns the index of the first message that is not before id.
func (m *Messages[P, ID]) first(messages []message[ID], id ID) int {
	i, _ := slices.BinarySearchFunc(messages, id,
		func(other message[ID], id ID) int { return m.compare(other.id, id) })
	return i
}
