package hour

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/tests/chaos/hour/journal"
)

// play runs the lanes of a plan side by side.
func (s *scene) play(ctx context.Context, plan []Lane) {
	start := time.Now()
	var lanes sync.WaitGroup
	for _, lane := range plan {
		lanes.Go(func() {
			for _, f := range lane {
				select {
				case <-time.After(time.Until(start.Add(f.At))):
				case <-ctx.Done():
					return
				}
				s.t.Logf("%s %v", time.Now().Format(clock), f)
				s.do(f)
				s.mu.Lock()
				s.done[f.Kind]++
				s.mu.Unlock()
			}
		})
	}
	lanes.Wait()
}

// outages are the faults that make the permit store unavailable, to some consumers or to all.
var outages = []Kind{Cut, CutPermits, Slow, ShardKilled, ShardFrozen, ShardClock}

// reconnects is how long after a fault consumers may need until they use the permit store again.
const reconnects = 3 * time.Second

// do breaks something, and mends it.
func (s *scene) do(f Fault) {
	if slices.Contains(outages, f.Kind) {
		from := time.Now()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.outages = append(s.outages, journal.Interval{
				From: from.UnixNano(), To: time.Now().Add(reconnects).UnixNano(),
			})
		}()
	}
	switch f.Kind {
	case Kill:
		s.each(f.Targets, (*worker).kill)
		time.Sleep(f.For)
		s.each(f.Targets, (*worker).start)
	case Pause:
		s.each(f.Targets, func(w *worker) { w.signal(syscall.SIGSTOP) })
		time.Sleep(f.For)
		s.each(f.Targets, func(w *worker) { w.signal(syscall.SIGCONT) })
	case Cut:
		s.partition(f, s.net.cut, s.net.mend)
	case CutPermits:
		s.partition(f, s.net.hide(permits), s.net.show(permits))
	case CutPolicies:
		s.partition(f, s.net.hide(policies), s.net.show(policies))
	case CutBrokers:
		s.partition(f, s.net.hide(brokers), s.net.show(brokers))
	case Slow:
		s.partition(f, s.net.slow, s.net.fast)
	case Rebalance:
		s.each(f.Targets, (*worker).stop)
		time.Sleep(f.For)
		s.each(f.Targets, (*worker).start)
	case Upgrade:
		for _, i := range f.Targets {
			s.each([]int{i}, func(w *worker) {
				w.stop()
				w.program = s.builds[1-slices.Index(s.builds[:], w.program)]
				w.start()
			})
		}
	case SeekKafka:
		s.seekKafka(int64(f.N))
	case SeekPulsar:
		s.seekPulsar(f.N)

	case ShardKilled:
		node := s.shards.Nodes[f.Targets[0]]
		node.Kill()
		time.Sleep(f.For)
		node.Start()
	case ShardFrozen:
		node := s.shards.Nodes[f.Targets[0]]
		node.Freeze()
		time.Sleep(f.For)
		node.Thaw()
	case ShardClock:
		clock := s.clocks[f.Targets[0]]
		clock.Set(time.Duration(f.N) * time.Second)
		time.Sleep(f.For)
		clock.Set(0)
	case EtcdCut:
		s.etcd.Isolate(f.Targets[0])
		time.Sleep(f.For)
		s.etcd.Heal()

	case KafkaKilled:
		s.kafka.Kill()
		time.Sleep(f.For)
		s.kafka.Start()
	case PulsarKilled:
		for _, g := range []int{pulsarThrottled, pulsarBare} {
			s.rewind(g, journal.Rewind{At: time.Now().UnixNano()})
		}
		s.pulsar.Kill()
		time.Sleep(f.For)
		s.pulsar.Start()

	case LimitAll, LimitKafka, LimitPulsar:
		l := s.limits[slices.Index([]Kind{LimitAll, LimitKafka, LimitPulsar}, f.Kind)]
		assert.NoError(s.t, s.limit(l, f.N))
	default:
		s.t.Errorf("nothing does %q", f.Kind)
	}
}

// each applies f to the workers of consumers, at once.
func (s *scene) each(consumers []int, f func(*worker)) {
	var all sync.WaitGroup
	for _, i := range consumers {
		for _, w := range s.twins(i) {
			all.Go(func() { f(w) })
		}
	}
	all.Wait()
}

// partition breaks the links of consumers, and mends them.
func (s *scene) partition(f Fault, breakLink, mend func(int)) {
	for _, i := range f.Targets {
		breakLink(i)
	}
	time.Sleep(f.For)
	for _, i := range f.Targets {
		mend(i)
	}
}

// seekKafka resets the consumer groups on Kafka to n messages before what they have committed,
// while they have no members, as Kafka requires.
func (s *scene) seekKafka(n int64) {
	ctx := context.WithoutCancel(s.t.Context())
	all := []int{0, 1, 2, 3}
	s.each(all, (*worker).stop)
	defer s.each(all, (*worker).start)
	client := &kafka.Client{Addr: kafka.TCP(s.kafka.Brokers...), Timeout: 5 * time.Second, Transport: &kafka.Transport{}}
	ids := make([]int, partitions)
	for i := range ids {
		ids[i] = i
	}
	for _, g := range []int{kafkaThrottled, kafkaBare} {
		assert.NoError(s.t, s.retry(func() error {
			committed, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
				GroupID: groupNames[g], Topics: map[string][]int{kafkaTopic: ids},
			})
			if err != nil {
				return err
			} else if committed.Error != nil {
				return committed.Error
			}
			to := map[int]journal.Position{}
			request := &kafka.OffsetCommitRequest{GroupID: groupNames[g], GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{}}
			for _, p := range committed.Topics[kafkaTopic] {
				if p.Error != nil {
					return p.Error
				}
				offset := max(0, p.CommittedOffset-n)
				to[p.Partition] = journal.Position{Entry: offset}
				request.Topics[kafkaTopic] = append(request.Topics[kafkaTopic], kafka.OffsetCommit{Partition: p.Partition, Offset: offset})
			}
			s.rewind(g, journal.Rewind{At: time.Now().UnixNano(), To: to})
			answer, err := client.OffsetCommit(ctx, request)
			if err != nil {
				return err
			}
			for _, p := range answer.Topics[kafkaTopic] {
				err = errors.Join(err, p.Error)
			}
			return err
		}))
	}
}

// seekPulsar resets the subscriptions on Pulsar to n messages before the last delivered ones, while
// consumers are connected.
func (s *scene) seekPulsar(n int) {
	for _, g := range []int{pulsarThrottled, pulsarBare} {
		given := map[int][]journal.Position{}
		for _, session := range s.sessions(g) {
			for _, d := range session.Deliveries {
				given[d.Partition] = append(given[d.Partition], d.Position)
			}
		}
		for p, positions := range given {
			slices.SortFunc(positions, journal.Position.Compare)
			positions = slices.Compact(positions)
			to := positions[max(0, len(positions)-n)]
			topic, err := utils.GetTopicName(fmt.Sprint(pulsarTopic, "-partition-", p))
			if !assert.NoError(s.t, err) {
				return
			}
			assert.NoError(s.t, s.retry(func() error {
				admin, err := s.pulsarAdmin()
				if err != nil {
					return err
				}
				s.rewind(g, journal.Rewind{At: time.Now().UnixNano(), To: map[int]journal.Position{p: to}})
				return admin.Subscriptions().ResetCursorToMessageID(*topic, groupNames[g],
					utils.MessageID{LedgerID: to.Ledger, EntryID: to.Entry, PartitionIndex: p})
			}))
		}
	}
}
