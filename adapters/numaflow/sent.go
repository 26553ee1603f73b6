package numaflowthrottle

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// WithRequeue has a source hand over again, before others, what a data plane that died had neither acknowledged nor refused: up
// to so many messages, which are kept in memory until they are. Default 0: the user's source gets a Nack for them. Of sources only.
func WithRequeue(messages int) Option { return func(o *options) { o.requeue = messages } }

// sent are the messages that the data plane has read and neither acknowledged nor refused.
type sent struct {
	keep int // messages to hand over again

	mu      sync.Mutex
	under   map[place]sentMessage
	count   uint64
	again   []sourcer.Message
	reading context.Context // of the data plane's stream of Reads
	acking  context.Context // of that of Acks; nil: there was none yet
}

// A place tells messages apart.
type place struct {
	partition int32
	offset    string
}

func placeOf(o sourcer.Offset) place { return place{o.PartitionId(), string(o.Value())} }

type sentMessage struct {
	order   uint64
	message sourcer.Message // with its offset alone, where none are kept
}

// mostSent bounds what is known of: a data plane has some batches at a time.
const mostSent = 100_000

func (s *sent) add(m sourcer.Message) {
	if s.keep == 0 {
		m = sourcer.NewMessage(nil, m.Offset(), time.Time{})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under == nil {
		s.under = map[place]sentMessage{}
	}
	if len(s.under) < mostSent {
		s.count++
		s.under[placeOf(m.Offset())] = sentMessage{s.count, m}
	}
}

// settle forgets messages.
func (s *sent) settle(offsets []sourcer.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range offsets {
		delete(s.under, placeOf(o))
	}
}

// acksOn notes which stream of Acks there is.
func (s *sent) acksOn(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acking = ctx
}

// read hands over up to n messages that are to be handed over again; false: there are none.
func (s *sent) read(n uint64, out chan<- sourcer.Message) bool {
	s.mu.Lock()
	n = min(n, uint64(len(s.again)))
	messages := s.again[:n]
	s.again = s.again[n:]
	s.mu.Unlock()
	for _, m := range messages {
		out <- m
	}
	return n > 0
}

func (s *sent) waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.again))
}

// abandon takes all that is outstanding; what is kept goes back to the front, and the rest is returned.
func (s *sent) abandon() (kept int, lost []sourcer.NackOffset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]sentMessage, 0, len(s.under))
	for _, m := range s.under {
		all = append(all, m)
	}
	clear(s.under)
	slices.SortFunc(all, func(a, b sentMessage) int { return cmp.Compare(a.order, b.order) })
	var again []sourcer.Message
	for _, m := range all {
		if len(again)+len(s.again) < s.keep {
			again = append(again, m.message)
		} else {
			lost = append(lost, sourcer.NackOffset{Offset: m.message.Offset()})
		}
	}
	s.again = append(again, s.again...)
	return len(again), lost
}

// acksWithin is how long Acks may take that come on a stream which did not exist when that of Reads ended.
const acksWithin = 5 * time.Second

// follow notes which stream of Reads there is. If there is another, the data plane has been started again.
func (s *source) follow(ctx context.Context) {
	s.sent.mu.Lock()
	before := s.sent.reading
	s.sent.reading = ctx
	s.sent.mu.Unlock()
	if before == ctx {
		return
	}
	if before != nil {
		s.abandon()
	}
	context.AfterFunc(ctx, func() { s.ended(ctx) })
}

// ended lets the last Acks come after the stream of Reads has ended.
func (s *source) ended(ctx context.Context) {
	over := func() {
		s.sent.mu.Lock()
		same := s.sent.reading == ctx
		s.sent.mu.Unlock()
		if same {
			s.abandon()
		}
	}
	s.sent.mu.Lock()
	acking := s.sent.acking
	s.sent.mu.Unlock()
	if acking != nil {
		context.AfterFunc(acking, over)
	} else {
		time.AfterFunc(acksWithin, over)
	}
}

// abandon says what nobody will settle any more.
func (s *source) abandon() {
	kept, lost := s.sent.abandon()
	if kept+len(lost) == 0 {
		return
	}
	s.log.Warn("numaflowthrottle: the data plane has gone with messages that it neither acknowledged nor refused", "topic", s.topic, "handed over again", kept, "nacked", len(lost))
	if len(lost) > 0 {
		s.Sourcer.Nack(context.Background(), nackRequest(lost))
	}
}

type nackRequest []sourcer.NackOffset

func (r nackRequest) Offsets() []sourcer.NackOffset { return r }
