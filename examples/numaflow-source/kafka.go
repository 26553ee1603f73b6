package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
	"github.com/segmentio/kafka-go"
)

// A topic is a Kafka topic as a source. Acknowledged messages are committed; refused ones are
// delivered again.
type topic struct {
	config kafka.ReaderConfig
	reader *kafka.Reader

	mu         sync.Mutex
	partitions map[int][]*fetched // not committed, in order
	again      []*fetched         // refused
}

// A fetched message was delivered to the data plane.
type fetched struct {
	message   kafka.Message
	acked     bool
	refused   bool
	notBefore time.Time // when a refused message may be delivered again
}

func newTopic(brokers []string, name, group string) *topic {
	return &topic{
		config: kafka.ReaderConfig{
			Brokers: brokers, Topic: name, GroupID: group,
			StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond,
		},
		partitions: map[int][]*fetched{},
	}
}

// Read delivers refused messages, and then new ones, until it has Count of them or TimeOut is over.
func (t *topic) Read(ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	ctx, cancel := context.WithTimeout(ctx, request.TimeOut())
	defer cancel()
	for range request.Count() {
		f := t.refused()
		if f == nil {
			m, err := t.reader.FetchMessage(ctx)
			if err != nil {
				if ctx.Err() == nil {
					slog.Error("cannot read", "topic", t.config.Topic, "error", err)
				}
				return
			}
			f = t.fetch(m)
		}
		select {
		case out <- messageOf(f.message):
		case <-ctx.Done():
			t.mu.Lock()
			t.refuse(f, 0)
			t.mu.Unlock()
			return
		}
	}
}

// messageOf returns a message of Kafka's as one of Numaflow's.
func messageOf(k kafka.Message) sourcer.Message {
	headers := map[string]string{}
	for _, h := range k.Headers {
		headers[text([]byte(h.Key))] = text(h.Value)
	}
	offset := sourcer.NewOffsetWithDefaultPartitionId(offsetOf(k))
	m := sourcer.NewMessage(k.Value, offset, k.Time).WithHeaders(headers)
	if len(k.Key) > 0 {
		m = m.WithKeys([]string{text(k.Key)})
	}
	return m
}

// text returns a key or header as a string, which is all that Numaflow can carry.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

func offsetOf(m kafka.Message) []byte { return fmt.Appendf(nil, "%d-%d", m.Partition, m.Offset) }

// refused returns a refused message that is to be delivered again now, or nil.
func (t *topic) refused() *fetched {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Messages may have been acknowledged late.
	t.again = slices.DeleteFunc(t.again, func(f *fetched) bool { return f.acked })
	for i, f := range t.again {
		if !f.notBefore.After(time.Now()) {
			t.again = append(t.again[:i], t.again[i+1:]...)
			f.refused = false
			return f
		}
	}
	return nil
}

// fetch adds a message.
func (t *topic) fetch(m kafka.Message) *fetched {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.partitions[m.Partition]
	if len(all) > 0 && m.Offset <= all[len(all)-1].message.Offset {
		all = nil // another consumer had the partition meanwhile
	}
	f := &fetched{message: m}
	t.partitions[m.Partition] = append(all, f)
	return f
}

// refuse has a message delivered again, after a delay. The caller holds t.mu.
func (t *topic) refuse(f *fetched, delay time.Duration) {
	if !f.refused && !f.acked {
		f.refused, f.notBefore = true, time.Now().Add(delay)
		t.again = append(t.again, f)
	}
}

// find returns the message with an offset, or nil if it is committed, or its partition belongs to
// another consumer now. The caller holds t.mu.
func (t *topic) find(offset sourcer.Offset) *fetched {
	var partition int
	var at int64
	if _, err := fmt.Sscanf(string(offset.Value()), "%d-%d", &partition, &at); err != nil {
		return nil
	}
	for _, f := range t.partitions[partition] {
		if f.message.Offset == at {
			return f
		}
	}
	return nil
}

// Ack commits, in each partition, up to the first message that is not acknowledged.
func (t *topic) Ack(ctx context.Context, request sourcer.AckRequest) {
	var done []kafka.Message
	t.mu.Lock()
	for _, o := range request.Offsets() {
		if f := t.find(o); f != nil {
			f.acked = true
		}
	}
	for partition, all := range t.partitions {
		n := 0
		for n < len(all) && all[n].acked {
			n++
		}
		if n > 0 {
			done = append(done, all[n-1].message)
			t.partitions[partition] = all[n:]
		}
	}
	t.mu.Unlock()
	if err := t.reader.CommitMessages(ctx, done...); err != nil {
		slog.Error("cannot commit; messages will be delivered again after a restart",
			"topic", t.config.Topic, "error", err)
	}
}

// Nack has messages delivered again, after the delay that it asks for.
func (t *topic) Nack(_ context.Context, request sourcer.NackRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range request.Offsets() {
		delay := time.Duration(0)
		if o.NackOptions != nil && o.NackOptions.Delay != nil {
			delay = time.Duration(*o.NackOptions.Delay) * time.Millisecond
		}
		if f := t.find(o.Offset); f != nil {
			t.refuse(f, delay)
		}
	}
}

// Pending returns the number of messages that the group has not committed, over all partitions,
// or -1 if the broker does not answer.
func (t *topic) Pending(ctx context.Context) int64 {
	pending, err := t.lag(ctx)
	if err != nil {
		slog.Warn("the backlog is unknown", "topic", t.config.Topic, "error", err)
		return -1
	}
	return pending
}

func (t *topic) lag(ctx context.Context) (lag int64, err error) {
	client := &kafka.Client{Addr: kafka.TCP(t.config.Brokers...), Timeout: 5 * time.Second}
	topics, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{t.config.Topic}})
	if err != nil {
		return 0, err
	}
	var partitions []int
	var ends []kafka.OffsetRequest
	for _, found := range topics.Topics {
		if found.Error != nil {
			return 0, found.Error
		}
		for _, p := range found.Partitions {
			partitions = append(partitions, p.ID)
			ends = append(ends, kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
		}
	}
	commits, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: t.config.GroupID, Topics: map[string][]int{t.config.Topic: partitions},
	})
	if err != nil {
		return 0, err
	}
	committed := map[int]int64{}
	for _, p := range commits.Topics[t.config.Topic] {
		if p.Error != nil {
			return 0, p.Error
		}
		committed[p.Partition] = p.CommittedOffset // -1 = none
	}
	offsets, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{t.config.Topic: ends},
	})
	if err != nil {
		return 0, err
	}
	for _, p := range offsets.Topics[t.config.Topic] {
		if p.Error != nil {
			return 0, p.Error
		}
		lag += p.LastOffset - max(p.FirstOffset, committed[p.Partition])
	}
	return lag, nil
}

// ActivePartitions returns this replica: the reader does not tell which of Kafka's partitions it
// owns.
func (t *topic) ActivePartitions(context.Context) []int32 { return sourcer.DefaultPartitions() }

// TotalPartitions is unknown.
func (t *topic) TotalPartitions(context.Context) *int32 { return nil }
