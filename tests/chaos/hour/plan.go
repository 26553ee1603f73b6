// Package hour breaks everything that consumers depend on for an hour, while a journal of each
// message shows that none is lost, none is reordered and no limit is exceeded.
package hour

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	Kill        Kind = "consumers killed"
	Pause       Kind = "consumers stopped (SIGSTOP)"
	Cut         Kind = "consumers cut off from everything"
	CutPermits  Kind = "consumers cut off from the permit store"
	CutPolicies Kind = "consumers cut off from the policy store"
	CutBrokers  Kind = "consumers cut off from the brokers"
	Slow        Kind = "slow links of consumers (64 kbit/s)"
	Rebalance   Kind = "consumers leave and join (rebalance)"
	Upgrade     Kind = "half of the consumers replaced by another build"
	SeekKafka   Kind = "Kafka consumer group reset to earlier offsets"
	SeekPulsar  Kind = "Pulsar subscription reset to earlier messages"

	ShardKilled Kind = "Redis shard killed"
	ShardFrozen Kind = "Redis shard frozen"
	ShardClock  Kind = "Redis shard's clock steps, and back"
	EtcdCut     Kind = "etcd member cut off from the others"

	KafkaKilled  Kind = "Kafka killed"
	PulsarKilled Kind = "Pulsar killed"

	LimitAll    Kind = "limit of both topics changed"
	LimitKafka  Kind = "limit of the Kafka topic changed"
	LimitPulsar Kind = "limit of the Pulsar topic changed"
)

// A Fault is something that breaks or changes at a time of the run, for a while.
type Fault struct {
	At, For time.Duration
	Kind    Kind
	Targets []int // consumers, shards or members, from 0; none: does not apply
	N       int   // messages a second, messages back, or seconds of a clock
}

// String is a line of the run's log.
func (f Fault) String() string {
	return fmt.Sprintf("%v for %v: %s %v %d", f.At, f.For, f.Kind, f.Targets, f.N)
}

// Consumers is the number of consumers: the first half reads from Kafka, the other from Pulsar.
const Consumers = 8

// A Lane is faults of which one begins when the one before has ended. Faults of different lanes
// overlap.
type Lane []Fault

// A deck is the kinds of a lane. Each kind comes once before any comes again.
type deck struct {
	kinds            []Kind
	minFor, maxFor   time.Duration // of a fault
	minRest, maxRest time.Duration // after it
}

const second = time.Second

var decks = []deck{
	{[]Kind{
		Kill, Pause, Cut, CutPermits, CutPolicies, CutBrokers, Slow, Rebalance, Upgrade, SeekKafka, SeekPulsar,
	}, 2 * second, 10 * second, 2 * second, 10 * second},
	{[]Kind{ShardKilled, ShardFrozen, ShardClock, EtcdCut}, second, 6 * second, 5 * second, 20 * second},
	{[]Kind{KafkaKilled, PulsarKilled}, second, 5 * second, 30 * second, 60 * second},
	{[]Kind{LimitAll, LimitKafka, LimitPulsar}, 0, 0, 4 * second, 12 * second},
}

// Plan returns the faults of a run of length d, by lane. It depends on nothing but its arguments.
func Plan(seed uint64, d time.Duration) []Lane {
	lanes := make([]Lane, len(decks))
	for i, deck := range decks {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		between := func(min, max time.Duration) time.Duration {
			return min + time.Duration(rng.Int64N(int64(max-min)/1e6+1))*time.Millisecond
		}
		var kinds []Kind
		for at := between(0, deck.maxRest); ; {
			if len(kinds) == 0 {
				kinds = slices.Clone(deck.kinds)
				rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			}
			f := Fault{At: at, For: between(deck.minFor, deck.maxFor), Kind: kinds[0]}
			kinds = kinds[1:]
			f.aim(rng)
			if f.At+f.For > d {
				break
			}
			lanes[i] = append(lanes[i], f)
			at += f.For + between(deck.minRest, deck.maxRest)
		}
	}
	return lanes
}

// aim chooses what a fault breaks.
func (f *Fault) aim(rng *rand.Rand) {
	switch f.Kind {
	case Upgrade:
		f.Targets = rng.Perm(Consumers)[:Consumers/2]
	case SeekKafka, SeekPulsar:
		f.N = 20 + rng.IntN(100)
	case ShardKilled, ShardFrozen, EtcdCut:
		f.Targets = []int{rng.IntN(3)}
	case ShardClock:
		f.Targets = []int{rng.IntN(3)}
		f.N = []int{-3600, -5, 5, 3600}[rng.IntN(4)]
	case LimitAll:
		f.N = 300 + 150*rng.IntN(3)
	case LimitKafka, LimitPulsar:
		f.N = 200 + 50*rng.IntN(4)
	case KafkaKilled, PulsarKilled:
	default:
		f.Targets = rng.Perm(Consumers)[:1+rng.IntN(3)]
	}
	slices.Sort(f.Targets)
}
