package scale

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/internal/sizing"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
)

// TestSize: what throttle-admin size says is within a quarter of what fleets of different shapes
// need. Processor time depends on the machine, and on what else it does: there, the first shape
// says how fast the machine is, and the others are within a factor of four.
func TestSize(t *testing.T) {
	type shape struct {
		limits, replicas, subscriptions int
		rate                            int64
		sharing                         policy.SharingMode
		processes                       int // fewer than replicas: their own needs are not compared
	}
	shapes := []shape{
		{10, 8, 1, 1000, policy.Fair, 8},
		{100, 4, 1, 20, policy.Fair, 4},
		{4, 6, 3, 100, policy.Fair, 6},
		{10, 200, 1, 100, policy.Fair, 2},
	}
	if permitstest.Long() {
		shapes = append(shapes[:1], // which says how fast the machine is
			shape{1, 1, 1, 10_000, policy.Fair, 1},
			shape{300, 2, 1, 20, policy.Fair, 2},
			shape{1000, 2, 1, 2, policy.Fair, 2},
			shape{10, 8, 1, 20, policy.Strict, 8},
			shape{1, 200, 1, 20, policy.Strict, 2},
			shape{10, 8, 1, 100, policy.Split, 8},
			shape{5, 20, 1, 100, policy.Split, 4},
			shape{5, 8, 1, 200, policy.Groups, 8},
			shape{2, 20, 1, 100, policy.Groups, 4},
		)
	}
	var redisSpeed, replicaSpeed float64 // of the machine: measured by said
	for i, s := range shapes {
		name := fmt.Sprintf("%s, %d limits, %d replicas, %d subscriptions, %d/s",
			s.sharing, s.limits, s.replicas, s.subscriptions, s.rate)
		t.Run(name, func(t *testing.T) {
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
			said := sizing.Fleet{
				Limits: s.limits, Replicas: s.replicas, Subscriptions: s.subscriptions, Rate: float64(s.rate),
				Round: 0.1, Sharing: s.sharing,
			}.Needs()
			loosely.Hold(t, func(loose assert.TestingT) {
				r := f.run(t)
				replicas, second := float64(s.replicas), r.seconds
				within := func(what string, said, measured float64) {
					t.Logf("%-14s said %10.4g, measured %10.4g: %.2f", what, said, measured, said/measured)
					assert.InEpsilon(loose, measured, said, 0.25, what)
				}
				within("requests/s", said.Requests, float64(r.Requests)/second)
				within("commands/s", said.Commands, r.redis.commands/second)
				within("bytes/s in", said.In, r.redis.in/second)
				within("bytes/s out", said.Out, r.redis.out/second)
				within("Redis' memory", said.RedisMemory, r.redis.memory)
				t.Logf("%.0f connections", r.redis.connections)
				assert.LessOrEqual(loose, r.redis.connections, float64(said.Connections))
				redis, replica := r.redis.cpu/second, r.CPU.Seconds()/second/replicas
				if i == 0 {
					redisSpeed, replicaSpeed = redis/said.RedisCPU, replica/said.ReplicaCPU
					t.Logf("speed: Redis %.2f, replica %.2f", redisSpeed, replicaSpeed)
				}
				about := func(what string, said, measured float64) {
					t.Logf("%-14s said %10.4g, measured %10.4g: %.2f", what, said, measured, said/measured)
					assert.InDelta(loose, 0, math.Log(said/measured), math.Log(4), what)
				}
				about("Redis' CPU", said.RedisCPU*redisSpeed, redis)
				if s.processes == s.replicas {
					within("memory", said.ReplicaMemory, r.Heap/replicas)
					about("CPU", said.ReplicaCPU*replicaSpeed, replica)
				}
			})
		})
	}
}
