package engine

// Take exposes the fast path of an admission: permits of every limit, and bytes.
func (a *Admission) Take(max, size int64) int64 { return a.take(max, size) }

// Waiters is how many shares the store can wake.
func (e *Engine) Waiters() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue.names)
}
