package kafkathrottle

// Close ends the calls that wait: they return io.EOF. A message that waits for its permit is
// dropped; it was never committed. Close returns the permits allocated for this Reader alone, and
// closes the kafka.Reader, which waits for its fetch under way, up to MaxWait. Commits then end,
// see CommitMessages. Close the Reader before its Limiter.
func (r *Reader) Close() error {
	if r.lim == nil {
		return r.Reader.Close()
	}
	r.once.Do(func() {
		r.receiver.Close()
		r.inFlight.SettleAll()
		r.closeSubscriptions()
		r.leave()
	})
	defer r.unread.close()
	defer r.setClosed()
	return r.Reader.Close()
}

func (r *Reader) closeSubscriptions() {
	for _, t := range r.topics {
		_ = t.sub.Close() // never fails
	}
}
