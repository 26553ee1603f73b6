package processes

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// percent returns n in percent of what a rate gives in d.
func percent(n int, rate int64, d time.Duration) float64 {
	return 100 * float64(n) / (float64(rate) * d.Seconds())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// TestAccuracyOneLimit: eight processes of one limit. The bounds of requests a message are goals of
// the benchmark of the same processes.
func TestAccuracyOneLimit(t *testing.T) {
	redis := services.Redis(t)
	for rate, requests := range map[int64]float64{1000: 0.1, 100_000: 0.01} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				const d = 4 * time.Second
				r := run(t, redis, replicas, d, job{Rate: rate, Max: 1}, nil)
				first := r.events[0].at
				got := r.count(-1, first, first+d-100*time.Millisecond)
				m.AtLeast("used, %", percent(got, rate, d-100*time.Millisecond), 97)
				m.AtMost("any second, %", percent(r.window(), rate, time.Second), 111)
				m.AtMost("requests a message", r.requestsPerMessage(), requests)
				var shares []float64
				for i := range replicas {
					shares = append(shares, 100*float64(r.count(i, time.Second, d))/float64(r.count(-1, time.Second, d)))
				}
				m.AtLeast("smallest share of eight, %", slices.Min(shares), 11.5)
				m.AtMost("largest share of eight, %", slices.Max(shares), 13.5)
			})
		})
	}
}

// strict records the spacing of strict permits, less what the machine's timers are late by.
func (r result) strict(m *accuracy.M, period time.Duration) {
	shortest, _ := r.gaps(0, time.Hour)
	m.AtLeast("shortest spacing, ms", ms(shortest), ms(period)-20)
}

// TestAccuracyStrict: eight processes of one strict line.
func TestAccuracyStrict(t *testing.T) {
	t.Parallel()
	for name, permits := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				// A new line starts after a period and a second.
				const d, begin, rate = 10 * time.Second, 2 * time.Second, 5
				r := run(t, permits(t), replicas, d, job{Rate: rate, Max: 1, Sharing: policy.Strict}, nil)
				m.AtLeast("used, %", percent(r.count(-1, begin, d), rate, d-begin), map[string]float64{"redis": 90, "etcd": 60}[name])
				r.strict(m, time.Second/rate)
				least := d
				for i := range replicas {
					least = min(least, time.Duration(r.count(i, begin, d)))
				}
				m.AtLeast("calls of the process with the fewest, of 5", float64(least), 2)
			})
		})
	}
}

// TestAccuracyStrictBeside: two processes of a strict line beside an aggregate that allows it.
func TestAccuracyStrictBeside(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{1, 2, 20} {
		t.Run(fmt.Sprintf("%d callers", callers), func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				const d, begin, rate = 12 * time.Second, 2 * time.Second, 5
				base := job{Rate: rate, Sharing: policy.Strict, Aggregate: 100, Callers: callers}
				r := run(t, services.Redis(t), 2, d, base, nil)
				m.AtLeast("used, %", percent(r.count(-1, begin, d), rate, d-begin), 95)
			})
		})
	}
}

// TestAccuracyDeadWaiters: eight processes wait for a slow limit one after the other, and are
// killed after 0.7 s. The next one waits for two periods at most; on a new strict line, for a
// period and a second more.
func TestAccuracyDeadWaiters(t *testing.T) {
	t.Parallel()
	const dead, life, period = 8, 700 * time.Millisecond, 5 * time.Second
	for mode, bound := range map[policy.SharingMode]time.Duration{policy.Fair: 2 * period, policy.Strict: 3*period + time.Second} {
		for name, permits := range sharedStores {
			t.Run(fmt.Sprintf("%s/%s", mode, name), func(t *testing.T) {
				t.Parallel()
				accuracy.Measure(t, func(m *accuracy.M) {
					const d = dead*life + 12*period
					base := job{Rate: 1, Period: period, Sharing: mode}
					r := start(t, permits(t), dead+1, d, base, func(i int, j *job) {
						j.Start = j.Start.Add(time.Duration(i) * life)
						if i < dead {
							j.Kill = true
						} else {
							j.Leave = 1
						}
					})
					for i := range dead {
						time.Sleep(time.Until(r.jobs[i].Start.Add(life)))
						r.signal(i, syscall.SIGKILL)
					}
					last := r.wait().events[0] // what the killed ones got died with them
					m.AtMost("the next one waits, s", last.wait.Seconds(), bound.Seconds())
				})
			})
		}
	}
}

// TestAccuracyQueue: eight processes queue for slots, two allocated ahead. One of them is killed
// halfway.
func TestAccuracyQueue(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const d, begin, rate = 8 * time.Second, 2 * time.Second, 20
		base := job{Rate: rate, Max: 1, Sharing: policy.Strict, Wait: policy.WaitQueue, MaxReserved: new(int64(2))}
		r := run(t, services.Redis(t), replicas, d, base, func(i int, j *job) {
			if i == 0 {
				j.End, j.Kill = j.Start.Add(d/2), true
			}
		})
		m.AtLeast("used, %", percent(r.count(-1, begin, d), rate, d-begin), 90)
		r.strict(m, time.Second/rate)
		var calls []int
		for i := 1; i < replicas; i++ {
			calls = append(calls, r.count(i, 0, d))
		}
		m.AtLeast("fewest calls, % of the most", 100*float64(slices.Min(calls))/float64(slices.Max(calls)), 80)
	})
}

// TestAccuracySplit: a limit is split by four processes, then by seven, then by one.
func TestAccuracySplit(t *testing.T) {
	t.Parallel()
	const rate, phase, measured = 500, 5 * time.Second, 2 * time.Second
	for name, permits := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				base := job{Rate: rate, Max: 1 << 20, Sharing: policy.Split}
				r := run(t, permits(t), 7, 3*phase, base, func(i int, j *job) {
					switch {
					case i >= 4:
						j.Delay = phase
					case i == 0:
						j.End, j.Kill = j.Start.Add(2*phase), true
					}
					if i >= 2 {
						j.End = j.Start.Add(2 * phase)
					}
				})
				for k, size := range []int{4, 7, 1} {
					from := time.Duration(k)*phase + poolTTL + 500*time.Millisecond
					figure := fmt.Sprintf("used by %d, 2.5 s after a change, %%", size)
					m.Within(figure, percent(r.count(-1, from, from+measured), rate, measured), 90, 102)
				}
				m.AtMost("any second, %", percent(r.window(), rate, time.Second), 111)
			})
		})
	}
}

// TestAccuracyGroups: two worker groups of six and two processes get half of the limit each, and a
// group does not take the permits of one that is silent, since that may be cut off.
func TestAccuracyGroups(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const rate, d, s = 500, 10 * time.Second, time.Second
		r := run(t, services.Redis(t), replicas, d, job{Rate: rate, Max: 10, Sharing: policy.Groups},
			func(i int, j *job) {
				j.Group = "eu"
				if i >= 6 {
					j.Group, j.End, j.Kill = "us", j.Start.Add(d/2), true
				}
			})
		group := func(first, last int, from, to time.Duration) (used float64) {
			for i := first; i <= last; i++ {
				used += percent(r.count(i, from, to), rate, to-from)
			}
			return used
		}
		m.Within("used by six, %", group(0, 5, s, 4*s), 45, 55)
		m.Within("used by two, %", group(6, 7, s, 4*s), 45, 55)
		m.Within("used by six when two are silent, %", group(0, 5, 7*s, 9*s), 45, 55)
		m.AtMost("any second, %", percent(r.window(), rate, s), 200)
	})
}

// TestAccuracyStopped: a process is stopped for a while.
func TestAccuracyStopped(t *testing.T) {
	t.Parallel()
	const stop, pause, s = 3 * time.Second, 30 * time.Second, time.Second
	for _, c := range []struct {
		job       job
		anySecond float64
		used      float64
	}{
		{job{Rate: 1000, Max: 1}, 111, 90},
		{job{Rate: 50, Max: 1, Sharing: policy.Strict}, 102, 90},
		{job{Rate: 1000, Max: 1, Sharing: policy.Split}, 111, 90},
		{job{Rate: 1000, Max: 1, Sharing: policy.Groups, Group: "eu"}, 200, 45},
	} {
		t.Run(cmp.Or(string(c.job.Sharing), "fair"), func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				end := stop + pause
				p := start(t, services.Redis(t), 4, end+4*s, c.job, nil)
				time.Sleep(time.Until(p.jobs[0].Start.Add(stop)))
				p.signal(0, syscall.SIGSTOP)
				time.Sleep(pause)
				p.signal(0, syscall.SIGCONT)
				r := p.wait()
				m.AtMost("any second, %", percent(r.window(), c.job.Rate, s), c.anySecond)
				m.AtLeast("used by the others, %", percent(r.count(-1, end-s, end), c.job.Rate, s), c.used)
				m.AtLeast("used 2 s after it, %", percent(r.count(-1, end+2*s, end+3*s), c.job.Rate, s), c.used)
			})
		})
	}
}

// TestAccuracyRestartedEmpty: Redis loses a schedule of which replicas hold permits.
func TestAccuracyRestartedEmpty(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const rate, d, s = 1000, 6 * time.Second, time.Second
		server := services.RedisServer(t)
		p := start(t, server.URL, 4, d, job{Rate: rate, Max: 1}, nil)
		time.Sleep(time.Until(p.jobs[0].Start.Add(2 * s)))
		server.Kill()
		server.Start()
		r := p.wait()
		m.AtMost("any second, %", percent(r.window(), rate, s), 115)
		m.AtLeast("used 2 s after it, %", percent(r.count(-1, 4*s, 5*s), rate, s), 90)
	})
}

// TestAccuracyChange: how soon a change is in force on each replica.
func TestAccuracyChange(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		took, _ := changes(t, 30, edits)
		m.AtMost("in force on each replica, ms (p99)", ms(percentile(took, 0.99)), 100)
		_, took = changes(t, 30, command(t))
		m.AtMost("in force on each replica, from the start of throttle-admin, ms (p99)", ms(percentile(took, 0.99)), 100)
	})
}
