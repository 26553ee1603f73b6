package scale

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/internal/sizing"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
)

// A shape is that of a fleet.
type shape struct {
	limits, replicas, subscriptions int
	rate                            int64
	sharing                         policy.SharingMode
	processes                       int // fewer than replicas: their own needs are not compared
}

// The first shape says how fast the machine is.
var (
	someShapes = []shape{
		{10, 8, 1, 1000, policy.Fair, 8},
		{100, 4, 1, 20, policy.Fair, 4},
		{4, 6, 3, 100, policy.Fair, 6},
		{10, 200, 1, 100, policy.Fair, 2},
	}
	otherShapes = []shape{
		{1, 1, 1, 10_000, policy.Fair, 1},
		{300, 2, 1, 20, policy.Fair, 2},
		{1000, 2, 1, 2, policy.Fair, 2},
		{10, 8, 1, 20, policy.Strict, 8},
		{1, 200, 1, 20, policy.Strict, 2},
		{10, 8, 1, 100, policy.Split, 8},
		{5, 20, 1, 100, policy.Split, 4},
		{5, 8, 1, 200, policy.Groups, 8},
		{2, 20, 1, 100, policy.Groups, 4},
	}
)

// TestAccuracySize: what throttle-admin size says, in percent of what fleets of different shapes
// need. Processor time depends on what else the machine does: there, a factor of four is allowed.
// With THROTTLE_SIZE, as by make size, there are more shapes.
func TestAccuracySize(t *testing.T) {
	shapes := someShapes
	if os.Getenv("THROTTLE_SIZE") != "" {
		shapes = slices.Concat(someShapes, otherShapes)
	}
	var redisSpeed, replicaSpeed float64 // of the machine: measured by said
	for i, s := range shapes {
		name := fmt.Sprintf("%s, %d limits, %d replicas, %d subscriptions, %d/s",
			s.sharing, s.limits, s.replicas, s.subscriptions, s.rate)
		t.Run(name, func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				r, said := s.fleet().run(t), s.said()
				replicas, second := float64(s.replicas), r.seconds
				within := func(what string, said, measured float64) { m.Within(what+", %", 100*said/measured, 75, 125) }
				within("requests", said.Requests, float64(r.Requests)/second)
				within("commands", said.Commands, r.redis.commands/second)
				within("bytes to Redis", said.In, r.redis.in/second)
				within("bytes from Redis", said.Out, r.redis.out/second)
				within("memory of Redis", said.RedisMemory, r.redis.memory)
				m.AtLeast("connections, %", 100*float64(said.Connections)/r.redis.connections, 100)
				redis, replica := r.redis.cpu/second, r.CPU.Seconds()/second/replicas
				if i == 0 {
					redisSpeed, replicaSpeed = redis/said.RedisCPU, replica/said.ReplicaCPU
				}
				about := func(what string, said, measured float64) { m.Within(what+", %", 100*said/measured, 25, 400) }
				about("processor of Redis", said.RedisCPU*redisSpeed, redis)
				if s.processes == s.replicas {
					within("memory of a replica", said.ReplicaMemory, r.Heap/replicas)
					about("processor of a replica", said.ReplicaCPU*replicaSpeed, replica)
				}
			})
		})
	}
}

func (s shape) fleet() fleet {
	f := fleet{
		job: job{
			Each: time.Millisecond, Subscriptions: s.subscriptions, Sharing: policy.Sharing{Mode: s.sharing},
		},
		processes: s.processes, replicas: s.replicas, settle: 4 * time.Second, measure: 4 * time.Second,
	}
	if s.sharing == policy.Groups {
		f.Sharing.Groups = []string{"eu", "us"}
	}
	if s.sharing == policy.Split {
		f.settle += 3 * time.Second // a pool waits a TTL before it uses anything
	}
	for range s.limits {
		f.Rates = append(f.Rates, s.rate)
	}
	return f
}

func (s shape) said() sizing.Needs {
	return sizing.Fleet{
		Limits: s.limits, Replicas: s.replicas, Subscriptions: s.subscriptions, Rate: float64(s.rate),
		Round: 0.1, Sharing: s.sharing,
	}.Needs()
}
