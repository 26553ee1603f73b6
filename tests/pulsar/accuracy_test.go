package pulsar_test

import (
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestAccuracyOneLimit: three subscriptions of two processes each.
func TestAccuracyOneLimit(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		const before, after, s = 600, 150, time.Second
		scene := newScene(t, services.Pulsar(t), services.Redis(t), 5000, subscriptions...)
		scene.limit(before)
		all := scene.six()
		more(t, 20, all, subscriptions...)
		time.Sleep(s)

		from := time.Now()
		time.Sleep(5 * s)
		read := all.Messages("")
		m.Within("used, %", all.Percent("", before, from, 5*s), 90, 104)
		m.AtMost("any second from the first message on, %",
			100*float64(fleet.Window(read, read[0].Read, time.Now()))/before, 125)
		for _, subscription := range subscriptions {
			m.Within("used by subscription "+subscription+", %", all.Percent(subscription, before, from, 5*s), 27, 40)
		}

		changed := scene.limit(after)
		time.Sleep(2100 * time.Millisecond)
		m.AtMost("used 100 to 350 ms after the limit was lowered, %",
			all.Percent("", after, changed.Add(s/10), s/4), 200)
		m.Within("used from 100 ms after it on, %", all.Percent("", after, changed.Add(s/10), 2*s), 90, 112)

		all[0].Kill(t)
		time.Sleep(s)
		from = time.Now()
		time.Sleep(2 * s)
		m.Within("used a second after a process was killed, %", all.Percent("", after, from, 2*s), 90, 112)
		for _, p := range all[1:] {
			p.Stop(t)
		}
	})
}
