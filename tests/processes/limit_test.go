package processes

import (
	"cmp"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const replicas = 8

// slack is what may be dispatched since the start beyond the rate: allocated slots that may be used
// before they are due, and those of the batch that has started.
const slack = 250 * time.Millisecond

// TestOneLimit: eight processes get permits of one limit, and never more than it allows.
func TestOneLimit(t *testing.T) {
	t.Parallel()
	for _, rate := range []int64{1000, 100_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			p := start(t, services.Patient(services.Redis(t)), replicas, throttletest.Patience, job{Rate: rate, Max: 1, Leave: int(rate / 10)}, nil)
			p.wait().neverOver(t, rate, slack, 0)
		})
	}
}

// TestStrict: eight processes get slots of one strict line, on each permit store that processes can
// share, and none of them before its time.
func TestStrict(t *testing.T) {
	t.Parallel()
	for name, permits := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, services.Patient(permits(t)), replicas, throttletest.Patience, job{Rate: 20, Max: 1, Sharing: policy.Strict, Tell: true}, nil)
			p.until(3)
			p.stop().inTurn(t, time.Second/20)
		})
	}
}

var sharedStores = map[string]func(testing.TB) string{"redis": services.Redis, "etcd": services.EtcdURL}

// TestQueue: eight processes queue for the slots of a strict line. When one of them is killed, the
// others still get theirs.
func TestQueue(t *testing.T) {
	t.Parallel()
	base := job{
		Rate: 20, Max: 1, Sharing: policy.Strict, Wait: policy.WaitQueue, MaxReserved: new(int64(2)), Tell: true,
	}
	p := start(t, services.Patient(services.Redis(t)), replicas, throttletest.Patience, base, func(i int, j *job) {
		if i == 0 {
			j.Leave, j.Kill = 2, true
		}
	})
	p.until(2, 0)
	p.until(5, 1, 2, 3, 4, 5, 6, 7)
	p.stop().inTurn(t, time.Second/20)
}

// TestSplit: a limit is split by four processes, then by seven, then by one after the others have
// ended or were killed. They never exceed the limit plus the pool size, and the last one goes on.
func TestSplit(t *testing.T) {
	t.Parallel()
	const rate = 500
	for name, permits := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, services.Patient(permits(t)), 7, throttletest.Patience, job{Rate: rate, Max: 1 << 20, Sharing: policy.Split, Tell: true},
				func(i int, j *job) {
					if i >= 4 {
						j.Delay = time.Second
					}
					if i != 1 {
						j.Leave, j.Kill = rate/2, i == 0
					}
				})
			p.until(rate/2, 0, 2, 3, 4, 5, 6)
			p.until(rate, 1)
			r := p.stop()
			r.neverOver(t, rate, slack, 7)
			assert.Equal(t, 1, r.events[len(r.events)-1].process)
		})
	}
}

// TestGroups: two worker groups of six and two processes never exceed their limit, and when all
// members of one are killed, the others go on.
func TestGroups(t *testing.T) {
	t.Parallel()
	const rate = 500
	p := start(t, services.Patient(services.Redis(t)), replicas, throttletest.Patience, job{Rate: rate, Max: 10, Sharing: policy.Groups, Tell: true},
		func(i int, j *job) {
			j.Group = "eu"
			if i >= 6 {
				j.Group, j.Leave, j.Kill = "us", 50, true
			}
		})
	p.until(50)
	p.until(200, 0, 1, 2, 3, 4, 5)
	p.stop().neverOver(t, rate, time.Second, 0) // a group may use the permits of a period at once
}

// TestStopped: while a process is stopped, the others get permits, and never more than the limit
// allows when it continues.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		job   job
		slack time.Duration
	}{
		{job{Rate: 1000, Max: 1}, slack},
		{job{Rate: 50, Max: 1, Sharing: policy.Strict}, slack},
		{job{Rate: 1000, Max: 1, Sharing: policy.Split}, slack},
		{job{Rate: 1000, Max: 1, Sharing: policy.Groups, Group: "eu"}, time.Second},
	} {
		t.Run(cmp.Or(string(c.job.Sharing), "fair"), func(t *testing.T) {
			t.Parallel()
			n := int(c.job.Rate / 10)
			c.job.Tell = true
			p := start(t, services.Patient(services.Redis(t)), 4, throttletest.Patience, c.job, nil)
			p.until(n)
			p.signal(0, syscall.SIGSTOP)
			p.until(n*10, 1, 2, 3) // for longer than poolTTL
			p.signal(0, syscall.SIGCONT)
			p.until(n)
			p.stop().neverOver(t, c.job.Rate, c.slack, 4)
		})
	}
}

// TestRestartedEmpty: replicas get permits again from a Redis that has lost a schedule. The new one
// counts what they still hold.
func TestRestartedEmpty(t *testing.T) {
	t.Parallel()
	const rate = 1000
	server := services.RedisServer(t)
	p := start(t, services.Patient(server.URL), 4, throttletest.Patience, job{Rate: rate, Max: 1, Tell: true}, nil)
	p.until(100)
	server.Kill()
	server.Start()
	p.until(300)
	const held = 120 * time.Millisecond // by replicas
	p.stop().neverOver(t, rate, slack+held, 0)
}
