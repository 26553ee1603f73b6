package dataplane

import (
	"fmt"
	"slices"
	"sync"
	"time"

	sourcepb "github.com/numaproj/numaflow-go/pkg/apis/proto/source/v1"
)

// A Batch configures the cycle of a data plane: it reads a batch from the source, maps it,
// collects the results in chunks for the sink, and acknowledges the batch when all its messages
// are settled. Only then it reads again, unless it reads ahead. A chunk goes to the sink when it
// is full, or Timeout after its first message. A nack goes to the source.
type Batch struct {
	Size    int           // readBatchSize
	Timeout time.Duration // readTimeout; 0 means 1 s, the default

	ReadAhead    bool          // reads up to 500 messages and two batches before an acknowledgement
	SinkTime     time.Duration // of the built-in sink behind a source or map, for each chunk
	Retry        Retry         // of a user-defined sink
	IgnoresNacks bool          // of the source: generator, NATS core, built-in Kafka
	IgnoresDelay bool          // the source redelivers at once
	Messages     int           // in the built-in source; 0 means endless
}

// A Retry is the vertex's retryStrategy: failed data are sent to the sink again while the chunk
// waits. The zero value retries every millisecond, without end.
type Retry struct {
	Interval time.Duration
	Steps    int  // 0 means without end
	Drop     bool // onFailure: drop, after Steps
}

// late is how late an answer may be, on a machine with pauses of up to two seconds. A vertex that
// waits for all permits of a batch takes longer.
const late = 2500 * time.Millisecond

// A message is on its way from source to sink.
type message struct {
	id     string
	keys   []string
	value  []byte
	offset *sourcepb.Offset // of a user-defined source
	nacked bool             // by a map or sink
	delay  time.Duration    // of the redelivery
	batch  *batch
}

// A batch is the messages of one Read.
type batch struct{ left sync.WaitGroup } // messages to settle

// nack returns a message to the source.
func (m *message) nack(delay time.Duration) { m.nacked, m.delay = true, delay }

// A source delivers messages. If read returns false, the flow ends.
type source interface {
	read() (messages []*message, ok bool)
	settle(acked, nacked []*message)
}

// A stage forwards messages, in goroutines of its own; it closes out after in is closed.
type stage func(in <-chan *message, out chan<- *message)

// A flow is a running MonoVertex.
type flow struct {
	Batch
	source source
	stage  stage                  // between source and sink; nil for none
	sink   func(chunk []*message) // may nack some
	end    func()                 // ends the streams

	stopping chan struct{} // closed: no further reads and retries
	once     sync.Once
}

// run starts the flow. stop ends the reads, and waits until all messages are settled.
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

// stop ends the flow, as on SIGTERM or when a stream fails.
func (f *flow) stop() { f.once.Do(func() { close(f.stopping) }) }

// stopped reports whether the flow is ending.
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
	for range batches - 1 { // this loop has one slot
		slots <- struct{}{}
	}
}

// chunks collects the messages of in: at most n, until timeout after the first.
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

// builtInSink returns a sink that takes a time for each chunk.
func builtInSink(takes time.Duration) func([]*message) {
	return func([]*message) { time.Sleep(takes) }
}

// A builtInSource delivers numbered messages.
type builtInSource struct {
	Batch
	vertex *Vertex // that gets the messages
	keys   func(i int) []string

	mu    sync.Mutex
	next  int
	again []again
}

// An again is a nacked message, which is redelivered at a time or later.
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
