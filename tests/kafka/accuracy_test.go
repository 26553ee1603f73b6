package kafka_test

import (
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestAccuracyOneLimit: two consumer groups of four processes each.
func TestAccuracyOneLimit(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		const s = time.Second
		scene := newScene(t, services.Redis(t), limit, 4, kafkaGo, kafkaGo)
		scene.each(20)
		time.Sleep(2 * s)

		from := time.Now()
		time.Sleep(5 * s)
		read := scene.consumers.Messages("")
		m.Within("used, %", scene.consumers.Percent("", limit, from, 5*s), 90, 104)
		m.AtMost("any second, %", 100*float64(fleet.Window(read, from, time.Now()))/limit, 111)

		changed := scene.set(lowered)
		time.Sleep(3100 * time.Millisecond)
		m.AtMost("used 100 to 350 ms after the limit was lowered, %",
			scene.consumers.Percent("", lowered, changed.Add(s/10), s/4), 200)
		m.Within("used from 100 ms after it on, %",
			scene.consumers.Percent("", lowered, changed.Add(s/10), 3*s), 90, 108)

		scene.consumers[0].Kill(t)
		time.Sleep(2 * s)
		from = time.Now()
		time.Sleep(3 * s)
		m.Within("used 2 s after a process was killed, %",
			scene.consumers.Percent("", lowered, from, 3*s), 90, 108)
		for _, p := range scene.consumers[1:] {
			p.Stop(t)
		}
	})
}
