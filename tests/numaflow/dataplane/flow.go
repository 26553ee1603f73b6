package dataplane

import (
	"fmt"
	"slices"
	"sync"
	"time"

	sourcepb "github.com/numaproj/numaflow-go/pkg/apis/proto/source/v1"
)

// A Batch is how a data plane works. In turn, it reads a batch from the source, maps it, collects what comes out in chunks for the
// sink, and acknowledges the batch when all of it is settled; only then it reads again, unless it reads ahead. A chunk goes to
// the sink when it is full, or Timeout after its first message. A nack goes to the source.
type Batch struct {
	Size    int           // readBatchSize
	Timeout time.Duration // readTimeout; 0 = 1 s, the default

	ReadAhead    bool          // reads the next batches before one is acknowledged, up to 500 messages and two batches
	SinkTime     time.Duration // for a chunk, of the built-in sink behind a source or map
	Retry        Retry         // of a sink
	IgnoresNacks bool          // the source does, as the generator, NATS core and the built-in Kafka source do
	IgnoresDelay bool          // the source redelivers at once
	Messages     int           // the built-in source has as many; 0 = no end
}

// A Retry is the vertex's retryStrategy. What fails is sent to the sink again, with the chunk waiting; the zero value
// retries every millisecond for ever.
type Retry struct {
	Interval time.Duration
	Steps    int  // 0 = for ever
	Drop     bool // onFailure: drop, after Steps
}

// late is how long after its time an answer may come, on a machine that stands still for two seconds. Who waits for all permits of a
// batch instead takes longer.
const late = 2500 * time.Millisecond

// A message is on its way from source to sink.
type message struct {
	id     string
	keys   []string
	value  []byte
	offset *sourcepb.Offset // of a user-defined source
	nacked bool             // by a map or sink, and
	delay  time.Duration    // so long
	batch  *batch
}

// A batch is what one Read got.
type batch struct{ left sync.WaitGroup } // messages that are not settled

// nack has a message go back to the source.
func (m *message) nack(delay time.Duration) { m.nacked, m.delay = true, delay }

// A source is where messages come from. A read that is not ok ends the flow.
type source interface {
	read() (messages []*message, ok bool)
	settle(acked, nacked []*message)
}

// A stage hands on the messages that it takes, in goroutines of its own; it closes out after in.
type stage func(in <-chan *message, out chan<- *message)

// A flow is a MonoVertex.
type flow struct {
	Batch
	source source
	stage  stage                  // between source and sink; nil: none
	sink   func(chunk []*message) // may nack some
	end    func()                 // of the streams

	stopping chan struct{} // closed: read no more, retry no more
	once     sync.Once
}

// run starts the flow. stop has it read no more, and waits until all that was read is settled.
func (f *flow) run() (stop func()) {
	f.stopping = make(chan struct{})
	if f.Timeout == 0 {
		f.Timeout = time.Second
	}
	read, done := make(chan *message, 2*f.Size), make(chan struct{})
	toSink := read
	if f.stage != nil {
		toSink = make(chan *message, 2*f.Size)
		f.stage(read, toSink)
	}
	go func() {
		defer close(done)
		defer f.end()
		chunks(toSink, f.Size, f.Timeout, func(chunk []*message) {
			f.sink(chunk)
			for _, m := range chunk {
				m.batch.left.Done()
			}
		})
	}()
	go func() {
		defer close(read)
		f.read(read)
	}()
	return func() {
		f.stop()
		<-done
	}
}

// stop ends the flow, as a SIGTERM or a stream that has failed does.
func (f *flow) stop() { f.once.Do(func() { close(f.stopping) }) }

// stopped reports whether the flow is to end.
func (f *flow) stopped() bool {
	select {
	case <-f.stopping:
		return true
	default:
		return false
	}
}

// read reads batches until the flow stops, and waits until they are settled.
func (f *flow) read(out chan<- *message) {
	batches := 1
	if f.ReadAhead {
		batches = max(2, 500/f.Size)
	}
	slots := make(chan struct{}, batches)
	for {
		slots <- struct{}{}
		if f.stopped() {
			break
		}
		messages, ok := f.source.read()
		if !ok {
			break
		}
		b := &batch{}
		b.left.Add(len(messages))
		for _, m := range messages {
			m.batch = b
		}
		go func() {
			b.left.Wait()
			nacked := slices.DeleteFunc(slices.Clone(messages), func(m *message) bool { return !m.nacked })
			acked := slices.DeleteFunc(slices.Clone(messages), func(m *message) bool { return m.nacked })
			f.source.settle(acked, nacked)
			<-slots
		}()
		for _, m := range messages {
			out <- m
		}
	}
	for range batches - 1 { // one slot is this loop's
		slots <- struct{}{}
	}
}

// chunks collects what comes from in: n at most, until timeout after the first.
func chunks(in <-chan *message, n int, timeout time.Duration, each func([]*message)) {
	for first := range in {
		chunk := []*message{first}
		timer := time.NewTimer(timeout)
	fill:
		for len(chunk) < n {
			select {
			case m, open := <-in:
				if !open {
					break fill
				}
				chunk = append(chunk, m)
			case <-timer.C:
				break fill
			}
		}
		timer.Stop()
		each(chunk)
	}
}

// builtInSink takes so long for a chunk.
func builtInSink(takes time.Duration) func([]*message) {
	return func([]*message) { time.Sleep(takes) }
}

// A builtInSource has numbered messages.
type builtInSource struct {
	Batch
	vertex *Vertex // that it feeds
	keys   func(i int) []string

	mu    sync.Mutex
	next  int
	again []again
}

// An again is a message that was nacked: it is delivered again, not before a time.
type again struct {
	m    *message
	from time.Time
}

func (s *builtInSource) read() (messages []*message, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.again = slices.DeleteFunc(s.again, func(a again) bool {
		take := len(messages) < s.Size && !a.from.After(now)
		if take {
			messages = append(messages, a.m)
		}
		return take
	})
	for ; len(messages) < s.Size && (s.Messages == 0 || s.next < s.Messages); s.next++ {
		m := &message{id: fmt.Sprint(s.next), value: fmt.Append(nil, s.next)}
		if s.keys != nil {
			m.keys = s.keys(s.next)
		}
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		time.Sleep(10 * time.Millisecond) // it is asked again at once
	}
	s.vertex.count(&s.vertex.delivered, len(messages))
	return messages, true
}

func (s *builtInSource) settle(_, nacked []*message) {
	if s.IgnoresNacks {
		s.vertex.count(&s.vertex.lost, len(nacked))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range nacked {
		from := time.Now()
		if !s.IgnoresDelay {
			from = from.Add(m.delay)
		}
		s.again = append(s.again, again{&message{id: m.id, keys: m.keys, value: m.value}, from})
	}
}
