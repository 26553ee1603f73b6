package kafkathrottle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// A poller asks a cluster once a second for the ends of the partitions that the Readers of this process own, and
// reports their backlogs. It runs while there is such a Reader, and asks nothing while none of them has a limit.
//
// A Reader of a group that has seen no partition goes by its group instead: the sum of what is not
// committed, over all partitions. So one that owns nothing, or only empty partitions, does not keep
// the others of its process from having caught up, when the group commits.
type poller struct {
	key       pollerKey
	client    *kafka.Client
	transport *kafka.Transport
	stop      context.CancelFunc
	done      chan struct{}
	readers   map[*Reader]bool // guarded by pollers
	failed    bool             // the last poll
}

// A pollerKey tells pollers apart: Readers with the same brokers and Dialer share one.
type pollerKey struct {
	brokers   string
	dialer    *kafka.Dialer
	isolation kafka.IsolationLevel
}

var pollers = struct {
	sync.Mutex
	running map[pollerKey]*poller
}{running: map[pollerKey]*poller{}}

const (
	pollInterval = time.Second
	pollTimeout  = 2 * time.Second
)

// joinPoller adds r to its cluster's poller, which starts with the first Reader.
func joinPoller(r *Reader) *poller {
	brokers := slices.Sorted(slices.Values(r.config.Brokers))
	key := pollerKey{strings.Join(brokers, ","), r.config.Dialer, r.config.IsolationLevel}
	pollers.Lock()
	defer pollers.Unlock()
	p := pollers.running[key]
	if p == nil {
		ctx, stop := context.WithCancel(context.Background())
		transport := transportOf(r.config.Dialer)
		client := &kafka.Client{Addr: kafka.TCP(r.config.Brokers...), Transport: transport}
		p = &poller{key: key, client: client, transport: transport, stop: stop, done: make(chan struct{}), readers: map[*Reader]bool{}}
		pollers.running[key] = p
		go p.run(ctx)
	}
	p.readers[r] = true
	return p
}

// leave takes r out; with the last Reader the poller ends.
func (p *poller) leave(r *Reader) {
	pollers.Lock()
	delete(p.readers, r)
	last := len(p.readers) == 0
	if last {
		delete(pollers.running, p.key)
	}
	pollers.Unlock()
	if last {
		p.stop()
		<-p.done
		p.transport.CloseIdleConnections()
	}
}

func (p *poller) run(ctx context.Context) {
	defer close(p.done)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		p.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// A question is what the poller wants to know for one topic of one Reader.
type question struct {
	reader  *Reader
	topic   *topic
	places  []place
	changes int
	err     error
}

func (p *poller) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	questions := p.questions()
	if len(questions) == 0 {
		return
	}
	p.askLeaders(ctx, questions)
	p.askGroups(ctx, questions)
	ends, err := p.askEnds(ctx, questions)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // closed
	}
	var failed error
	for _, q := range questions {
		q.err = errors.Join(q.err, err)
		backlog := int64(-1)
		if q.err == nil {
			backlog, q.err = q.backlog(ends)
		}
		if q.err != nil && !p.failed {
			q.reader.logf("kafkathrottle: the backlog of %s is not known: %v", q.topic.name, q.err)
		}
		failed = errors.Join(failed, q.err)
		q.topic.conclude(backlog, q.changes)
	}
	p.failed = failed != nil
}

// questions are those of all topics that have a limit.
func (p *poller) questions() (out []*question) {
	pollers.Lock()
	readers := make([]*Reader, 0, len(p.readers))
	for r := range p.readers {
		readers = append(readers, r)
	}
	pollers.Unlock()
	for _, r := range readers {
		hungry := r.turn.Taken() && !r.waiting.Load()
		for _, t := range r.topics {
			if len(t.sub.Stats().Limits) > 0 || r.tagOf != nil && t.sub.TagsLimited() {
				q := &question{reader: r, topic: t}
				q.places, q.changes = t.owned(r, hungry)
				out = append(out, q)
			}
		}
	}
	return out
}

// askGroups finds the places of Readers that have seen no partition.
func (p *poller) askGroups(ctx context.Context, questions []*question) {
	type asked struct {
		places []place
		err    error
	}
	known := map[[2]string]asked{}
	for _, q := range questions {
		if len(q.places) > 0 {
			continue
		}
		key := [2]string{q.reader.config.GroupID, q.topic.name}
		a, ok := known[key]
		if !ok {
			a.places, a.err = p.committed(ctx, key[0], key[1])
			known[key] = a
		}
		q.err = a.err
		for _, at := range a.places {
			if at.next < 0 { // never committed: where kafka-go would begin
				at.next = kafka.FirstOffset
				if q.reader.config.StartOffset == kafka.LastOffset {
					at.next = kafka.LastOffset
				}
			}
			q.places = append(q.places, at)
		}
	}
}

// committed returns how far a group is in all partitions of a topic; -1 where it has committed nothing.
func (p *poller) committed(ctx context.Context, group, topic string) (places []place, err error) {
	meta, err := p.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	var partitions []int
	for _, t := range meta.Topics {
		if t.Name != topic {
			continue
		}
		if t.Error != nil {
			return nil, t.Error
		}
		for _, partition := range t.Partitions {
			partitions = append(partitions, partition.ID)
		}
	}
	if len(partitions) == 0 {
		return nil, kafka.UnknownTopicOrPartition
	}
	offsets, err := p.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: partitions}})
	if err == nil {
		err = offsets.Error
	}
	if err != nil {
		return nil, err
	}
	for _, o := range offsets.Topics[topic] {
		if o.Error != nil {
			return nil, o.Error
		}
		places = append(places, place{o.Partition, o.CommittedOffset})
	}
	if len(places) != len(partitions) {
		return nil, fmt.Errorf("%d of %d partitions of %s have no committed offset", len(partitions)-len(places), len(partitions), topic)
	}
	return places, nil
}

// askEnds returns the ends of all partitions asked for, and the beginnings of those that somebody wants to read
// from there.
func (p *poller) askEnds(ctx context.Context, questions []*question) (map[string]map[int]kafka.PartitionOffsets, error) {
	wanted := map[string]map[int]bool{} // true: its beginning, too
	for _, q := range questions {
		for _, at := range q.places {
			if wanted[q.topic.name] == nil {
				wanted[q.topic.name] = map[int]bool{}
			}
			wanted[q.topic.name][at.partition] = wanted[q.topic.name][at.partition] || at.next == kafka.FirstOffset
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	requests := map[string][]kafka.OffsetRequest{}
	for topic, partitions := range wanted {
		for partition, first := range partitions {
			requests[topic] = append(requests[topic], kafka.LastOffsetOf(partition))
			if first {
				requests[topic] = append(requests[topic], kafka.FirstOffsetOf(partition))
			}
		}
	}
	response, err := p.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: requests, IsolationLevel: p.key.isolation})
	if err != nil {
		return nil, err
	}
	ends := map[string]map[int]kafka.PartitionOffsets{}
	for topic, partitions := range response.Topics {
		ends[topic] = map[int]kafka.PartitionOffsets{}
		for _, o := range partitions {
			ends[topic][o.Partition] = o
		}
	}
	return ends, nil
}

// backlog adds up what is behind the places.
func (q *question) backlog(ends map[string]map[int]kafka.PartitionOffsets) (sum int64, err error) {
	for _, at := range q.places {
		o, ok := ends[q.topic.name][at.partition]
		if !ok || o.Error != nil {
			return -1, fmt.Errorf("partition %d: %w", at.partition, errors.Join(o.Error, kafka.UnknownTopicOrPartition))
		}
		switch at.next {
		case kafka.LastOffset:
		case kafka.FirstOffset:
			sum += o.LastOffset - o.FirstOffset
		default:
			sum += max(0, o.LastOffset-max(at.next, o.FirstOffset))
		}
	}
	return sum, nil
}

// logf writes to the log that the reader was opened with.
func (r *Reader) logf(format string, args ...any) {
	if r.config.ErrorLogger != nil {
		r.config.ErrorLogger.Printf(format, args...)
	} else if r.config.Logger != nil {
		r.config.Logger.Printf(format, args...)
	}
}

// transportOf connects as d does.
func transportOf(d *kafka.Dialer) *kafka.Transport {
	dial := d.DialFunc
	if dial == nil {
		dial = (&net.Dialer{Timeout: d.Timeout, LocalAddr: d.LocalAddr, FallbackDelay: d.FallbackDelay, KeepAlive: d.KeepAlive}).DialContext
	}
	if d.Resolver != nil {
		direct := dial
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			hosts, err := d.Resolver.LookupHost(ctx, host)
			if err != nil {
				return nil, err
			}
			if len(hosts) > 0 {
				host = hosts[0]
			}
			return direct(ctx, network, net.JoinHostPort(host, port))
		}
	}
	return &kafka.Transport{Dial: dial, DialTimeout: d.Timeout, ClientID: d.ClientID, TLS: d.TLS, SASL: d.SASLMechanism}
}
