package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// member are the options of a member of a consumer group.
func member(brokers []string, topic, group string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.FetchMaxPartitionBytes(5000), // so that partitions come in turn
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.SessionTimeout(sessionTimeout), kgo.RebalanceTimeout(sessionTimeout),
	}
}

// poll reports each record that a franz-go client polls, each commit, and each partition that is
// assigned to it.
func poll(ctx context.Context, lim *dispatch.Limiter, brokers []string, topic, group, client string) error {
	balancer := kgo.CooperativeStickyBalancer()
	if client == franzGoEager {
		balancer = kgo.RangeBalancer()
	}
	c, err := franzthrottle.New(lim, append(member(brokers, topic, group),
		kgo.Balancers(balancer), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			for _, id := range partitions[topic] {
				fleet.Print(fleet.Assigned, fmt.Sprint(id))
			}
		}),
	))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		fetches := c.PollRecords(ctx, commitEvery)
		if ctx.Err() != nil {
			return nil
		}
		fetches.EachError(func(_ string, _ int32, err error) { fmt.Fprintln(os.Stderr, err) })
		fetches.EachRecord(func(r *kgo.Record) { fleet.Print(fleet.Read, fmt.Sprint(r.Partition, "/", r.Offset)) })
		if !fetches.Empty() {
			event := fleet.Committed
			if err := c.CommitUncommittedOffsets(context.WithoutCancel(ctx)); err != nil {
				event = fleet.Unsettled
			}
			fleet.Print(event, "-")
		}
		c.AllowRebalance()
	}
}

// TestFranzGroups: processes of a consumer group of franz-go clients are killed, paused for longer
// than their session, added and removed, without others on the topic and beside a group of
// kafka-go. The limit holds, others use the part of one that is gone, no record is lost, and those
// of a partition come in order while a process owns it.
func TestFranzGroups(t *testing.T) {
	for name, clients := range map[string][]string{
		"alone, cooperative": {franzGo}, "beside kafka-go, eager": {franzGoEager, kafkaGo},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, services.Patient(services.Redis(t)), lowered, 3, clients...)
			group := s.groups[0].name
			var ours fleet.Fleet // of the group
			for i := 0; i < len(s.consumers); i += len(clients) {
				ours = append(ours, s.consumers[i])
			}
			s.each(20)

			killed := ours[0]
			killed.Kill(t)
			died, n := time.Now(), len(s.consumers.Messages(""))
			throttletest.Until(t, "others use the limit", func() bool { return len(s.consumers.Messages("")) > n+2*lowered })
			s.readFrom(partitions, ours[1:], died)

			paused := ours[1]
			paused.Pause(t)
			stopped := time.Now()
			s.readFrom(partitions, ours[2:], stopped) // the last has all partitions

			added := s.start(s.groups[0])
			s.readFrom(1, fleet.Fleet{added}, time.Time{})
			had, resumed := paused.Assigned(), time.Now()
			paused.Resume(t)
			throttletest.Until(t, "it is a member again", func() bool {
				return slices.ContainsFunc(paused.Messages(), func(m fleet.Message) bool { return m.Committed && m.Read.After(resumed) })
			})

			removed := ours[2]
			removed.Stop(t)
			s.readFrom(partitions, fleet.Fleet{paused, added}, time.Now())
			require.NoError(t, fleet.WithinRate(s.consumers.Messages(""), lowered, s.begin, slack))

			s.set(100_000)
			for _, g := range s.groups {
				throttletest.Until(t, "all messages are read by "+g.client, func() bool {
					return fleet.Distinct(s.consumers.Messages(g.name)) == produced
				})
			}
			for _, p := range s.consumers {
				if p != killed && p != removed {
					p.Stop(t)
				}
			}
			for _, p := range s.consumers {
				if p.Subscription == group {
					inOrder(t, p)
				}
			}
			// If a commit fails before a heartbeat does, kgo joins again and keeps its place, as if the
			// partitions had not been another's.
			stale := func(m fleet.Message) bool {
				return m.Consumer == paused.ID && m.Read.After(stopped) && m.Ownership <= had[m.Partition()]
			}
			for _, g := range s.groups {
				check(t, g.name, s.consumers.Messages(g.name), killed, died, stale)
			}
		})
	}
}

// readFrom waits until processes have read from n partitions since a time.
func (s *scene) readFrom(n int, by fleet.Fleet, since time.Time) {
	s.t.Helper()
	throttletest.Until(s.t, fmt.Sprintf("%d partitions are read", n), func() bool {
		read := map[string]bool{}
		for _, m := range by.Messages("") {
			if m.Read.After(since) {
				read[m.Partition()] = true
			}
		}
		return len(read) >= n
	})
}

// inOrder requires that a process has read the records of each partition one after the other, from
// each time that it was assigned.
func inOrder(t *testing.T, p *fleet.Process) {
	t.Helper()
	type ownership struct{ partition, number int }
	next := map[ownership]int64{}
	for _, m := range p.Messages() {
		o, offset := ownership{number: m.Ownership}, int64(0)
		_, err := fmt.Sscanf(m.ID, "%d/%d", &o.partition, &offset)
		require.NoError(t, err, m.ID)
		require.Positive(t, o.number, m.ID)
		if want, found := next[o]; found {
			require.Equal(t, want, offset, "process %d, partition %d, assigned %d times", p.ID, o.partition, o.number)
		}
		next[o] = offset + 1
	}
}

// copyOver copies a topic in transactions, of which it aborts one of three, until ctx ends: each
// record to the partition that it is from. With an id that begins with open, it reports its fourth
// transaction as read, and does not end it.
func copyOver(ctx context.Context, lim *dispatch.Limiter, brokers []string, topic, group, id string) error {
	s, err := franzthrottle.NewSession(lim, append(member(brokers, topic, group),
		kgo.TransactionalID(topic+"-"+strings.TrimPrefix(id, open)), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(copyOf(topic)),
	))
	if err != nil {
		return err
	}
	defer s.Close()
	for n := 1; ; n++ {
		fetches := s.PollRecords(ctx, 100)
		if ctx.Err() != nil {
			return nil
		}
		if err := errors.Join(fetches.Err(), s.Begin()); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			s.Produce(ctx, &kgo.Record{Partition: r.Partition, Value: r.Value}, nil) // End tells of errors
		})
		if n == 4 && strings.HasPrefix(id, open) {
			if err := s.Client().Flush(ctx); err != nil {
				return err
			}
			fleet.Print(fleet.Read, fmt.Sprint(fetches.NumRecords()))
			<-ctx.Done()
		}
		_, err := s.End(context.WithoutCancel(ctx), kgo.TransactionEndTry(n%3 > 0))
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // those that a rebalance aborts come again
		}
	}
}

// open begins the id of a process that leaves a transaction open.
const open = "open-"

func copyOf(topic string) string { return topic + "-copy" }

// TestFranzTransactions: three processes copy a topic in transactions, and abort some of these. One
// is killed in a transaction, and started again. Each record is in the copy once, and in order.
func TestFranzTransactions(t *testing.T) {
	t.Parallel()
	s := newScene(t, services.Patient(services.Redis(t)), 2*limit, 0, franzGoSession)
	k := services.Kafka(t)
	k.CreateTopic(copyOf(s.topic.Name), partitions)
	copiers := s.groups[0]
	killed := s.start(copiers, open+"a")
	throttletest.Until(t, "it is in a transaction", func() bool { return len(killed.Messages()) == 1 })
	killed.Kill(t)
	for _, id := range []string{"a", "b", "c"} {
		s.start(copiers, id)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.ConsumeTopics(copyOf(s.topic.Name)),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	require.NoError(t, err)
	defer c.Close()
	source, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.ConsumeTopics(s.topic.Name))
	require.NoError(t, err)
	defer source.Close()
	want, got := map[int32][]string{}, map[int32][]string{}
	take := func(c *kgo.Client, n int, to map[int32][]string) {
		ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
		defer cancel()
		for n > 0 {
			fetches := c.PollFetches(ctx)
			require.NoError(t, fetches.Err(), "%d records are missing", n)
			fetches.EachRecord(func(r *kgo.Record) {
				to[r.Partition] = append(to[r.Partition], string(r.Value))
				n--
			})
		}
	}
	take(source, produced, want)
	take(c, produced, got)
	for _, p := range s.consumers[1:] {
		p.Stop(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, c.PollFetches(ctx).Err(), context.DeadlineExceeded, "a record came twice")
	for id := range want {
		require.Len(t, got[id], len(want[id]), "partition %d", id)
		for i, value := range want[id] {
			require.Equal(t, value, got[id][i], "partition %d, record %d", id, i)
		}
	}
}
