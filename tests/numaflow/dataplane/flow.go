package dataplane

import (
	"fmt"
	"slices"
	"sync"
	"time"

	sourcepb "github.com/numaproj/numaflow-go/pkg/apis/proto/source/v1"
)

// A Batch configures the cycle of a data plane. It reads a batch from the source, maps it, collects
// the results in chunks for the sink, and acknowledges the batch when all its messages are settled.
// Only then does it read again, unless it reads ahead. A chunk goes to the sink when it is full, or
// Timeout after its first message. A nack goes to the source.
type Batch struct {
	Size    int           // readBatchSize
	Timeout time.Duration // readTimeout; default 1 s

	ReadAhead    bool          // reads two batches or 500 messages ahead of acknowledgements
	SinkTime     time.Duration // of a chunk in the built-in sink of a source or map
	Retry        Retry         // of a sink
	IgnoresNacks bool          // like the generator, NATS core and the built-in Kafka source
	IgnoresDelay bool          // the source redelivers at once
	Messages     int           // of the built-in source; 0: no end
}

// A Retry is the vertex's retryStrategy. Failed messages are sent to the sink again while the chunk
// waits. The zero value retries every millisecond without an end.
type Retry struct {
	Interval time.Duration
	Steps    int  // 0: no end
	Drop     bool // onFailure: drop, after Steps
}

// late is the delay of an answer that is a fault, however busy the machine is.
const late = 30 * time.Second

// A message is on its way from source to sink.
type message struct {
	id     string
	keys   []string
	value  []byte
	offset *sourcepb.Offset // of a user-defined source
	nacked bool             // by a map or sink
	delay  time.Duration    // of the nack
	batch  *batch
}

// A batch has the messages of one Read.
type batch struct{ left sync.WaitGroup } // messages that are not settled

// nack returns a message to the source.
func (m *message) nack(delay time.Duration) { m.nacked, m.delay = true, delay }

// A source delivers messages. A read that is not ok ends the flow.
type source interface {
	read() (messages []*message, ok bool)
	settle(acked, nacked []*message)
}

// A stage passes messages from in to out in its own goroutines. It closes out after in is closed.
type stage func(in <-chan *message, out chan<- *message)

// A flow is a MonoVertex.
type flow struct {
	Batch
	source source
	stage  stage                  // between source and sink; nil: none
	sink   func(chunk []*message) // may nack messages
	end    func()                 // ends the streams

	stopping chan struct{} // closed: no more reads and retries
	once     sync.Once
}

// run starts the flow. The function stop ends reading and waits until all messages are settled.
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

// stop ends the flow, as SIGTERM or a failed stream does.
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
			nacked := slices.DeleteFunc(slices.Clone(messages), func(m *message) bool {
				return !m.nacked
			})
			acked := slices.DeleteFunc(slices.Clone(messages), func(m *message) bool {
				return m.nacked
			})
			f.source.settle(acked, nacked)
			<-slots
		}()
		for _, m := range messages {
			out <- m
		}
	}
	for range batches - 1 { // this loop holds one slot
		slots <- struct{}{}
	}
}

// chunks collects messages and calls each with at most n of them, at the latest timeout after the
// first one.
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

// builtInSink returns a sink that takes this time for each chunk.
func builtInSink(takes time.Duration) func([]*message) {
	return func([]*message) { time.Sleep(takes) }
}

// A builtInSource has numbered messages.
type builtInSource struct {
	Batch
	vertex *Vertex // receives the messages
	keys   func(i int) []string

	mu    sync.Mutex
	next  int
	again []again
}

// An again is a nacked message, which is redelivered at or after a time.
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
		time.Sleep(10 * time.Millisecond) // the next read follows at once
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
