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

// TestAccuracyKilled: processes of a consumer group of franz-go and of one of kafka-go are killed.
// Their permits were allocated for a round of 100 ms; others use their parts two rounds later.
func TestAccuracyKilled(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		const s = time.Second
		scene := newScene(t, services.Redis(t), limit, 3, franzGo, kafkaGo)
		scene.each(20)
		time.Sleep(2 * s)
		for i, g := range scene.groups {
			scene.consumers[i].Kill(t)
			died := time.Now()
			time.Sleep(2500 * time.Millisecond)
			m.Within("used 200 to 700 ms after a process of "+g.client+" was killed, %",
				scene.consumers.Percent("", limit, died.Add(s/5), s/2), 90, 108)
			m.Within("used from 200 ms after one of "+g.client+" was killed on, %",
				scene.consumers.Percent("", limit, died.Add(s/5), 2*s), 96, 104)
		}
		for _, p := range scene.consumers[len(scene.groups):] {
			p.Stop(t)
		}
	})
}
