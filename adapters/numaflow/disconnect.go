package numaflowthrottle

import (
	"context"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// What happens when the data plane of a source dies, or its connection is lost:
//
//  1. Its stream of Reads ends. Acks may still come, as when a data plane shuts down: until its
//     stream of Acks ends, or ackPatience if there was none yet.
//  2. After that, or when another data plane reads, the messages read before will never be
//     acknowledged. The user's source gets them in Nack; WithRequeue delivers them again first.

// WithRequeue has a source deliver again, before other messages, those that a dead data plane had
// neither acknowledged nor refused. For that, the first n unacknowledged messages are kept in
// memory; the user's source gets a Nack for the others. The default is 0. It is for
// sources.
func WithRequeue(messages int) Option { return func(o *options) { o.requeue = messages } }

// ackPatience is how long the first Ack may take after the stream of Reads has ended: the stream
// of Acks is not known before. It is longer than a sink usually takes for a batch.
const ackPatience = 30 * time.Second

// follow notes the data plane's stream of Reads. If it is another, the data plane has been
// restarted.
func (s *source) follow(ctx context.Context) {
	s.unacknowledged.mu.Lock()
	if s.unacknowledged.reading == ctx {
		s.unacknowledged.mu.Unlock()
		return
	}
	s.unacknowledged.reading, s.unacknowledged.acking = ctx, nil
	entries := s.unacknowledged.takeAll()
	s.unacknowledged.mu.Unlock()
	s.abandon(entries)
	context.AfterFunc(ctx, func() { s.readsEnded(ctx) })
}

// readsEnded waits for the last Acks after the stream of Reads has ended.
func (s *source) readsEnded(ctx context.Context) {
	s.unacknowledged.mu.Lock()
	acking := s.unacknowledged.acking
	s.unacknowledged.mu.Unlock()
	if acking != nil {
		context.AfterFunc(acking, func() { s.acksEnded(ctx) })
	} else {
		time.AfterFunc(ackPatience, func() { s.acksEnded(ctx) })
	}
}

// acksEnded gives up what was read on a stream, unless Acks still come.
func (s *source) acksEnded(ctx context.Context) {
	s.unacknowledged.mu.Lock()
	if s.unacknowledged.reading != ctx { // follow has given it up
		s.unacknowledged.mu.Unlock()
		return
	}
	if acking := s.unacknowledged.acking; acking != nil && acking.Err() == nil { // they began late
		s.unacknowledged.mu.Unlock()
		context.AfterFunc(acking, func() { s.acksEnded(ctx) })
		return
	}
	entries := s.unacknowledged.takeAll()
	s.unacknowledged.mu.Unlock()
	s.abandon(entries)
}

// note adds the messages of a Read to those that are unacknowledged.
func (s *source) note(ctx context.Context, read []entry) {
	s.unacknowledged.mu.Lock()
	current, tooMany := s.unacknowledged.reading == ctx, 0
	if current {
		tooMany = s.unacknowledged.add(read)
	}
	tell := tooMany > 0 && !s.unacknowledged.told
	s.unacknowledged.told = tooMany > 0
	s.unacknowledged.mu.Unlock()
	if tell {
		s.log.Warn("numaflowthrottle: too many messages are unacknowledged;"+
			" if the data plane dies, the source gets no Nack for the last of them",
			"topic", s.topic, "unacknowledged", maxUnacknowledged)
	}
	switch {
	case !current: // another data plane has started to read
		s.abandon(read)
	case ctx.Err() != nil: // the end may have been dealt with before these messages were added
		s.readsEnded(ctx)
	}
}

// abandon gives up messages that will not be settled.
func (s *source) abandon(entries []entry) {
	s.unacknowledged.mu.Lock()
	kept, lost := s.unacknowledged.abandon(entries)
	s.unacknowledged.mu.Unlock()
	if kept+len(lost) == 0 {
		return
	}
	s.log.Warn("numaflowthrottle: the data plane has left messages unacknowledged",
		"topic", s.topic, "delivered again", kept, "nacked", len(lost))
	if len(lost) > 0 {
		s.guarded(func() { s.Sourcer.Nack(context.Background(), nackRequest(lost)) })
	}
}

type nackRequest []sourcer.NackOffset

func (r nackRequest) Offsets() []sourcer.NackOffset { return r }
