package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
)

// TestNoCallerIsStranded runs callers that come, give up and settle at random under random limits.
// Each of them is served within 15 s or gives up.
func TestNoCallerIsStranded(t *testing.T) {
	policies := []string{
		"messageRate=200",
		"messageRate=30",
		"messageRate=50 sharing.mode=strict",
		"messageRate=50 sharing.mode=strict sharing.wait=queue sharing.maxReserved=1",
		"messageRate=50 sharing.mode=strict sharing.maxReserved=0",
		"messageRate=100 sharing.mode=split sharing.replicas=1",
		"messageRate=100 sharing.mode=groups sharing.groups=eu",
		"messageRate=100 byteRate=50000",
		"messageRate=100 maxInFlight=2",
		"messageRate=50 sharing.mode=strict maxInFlight=2 byteRate=50000",
		"messageRate=100 ramp.over=3s ramp.from=20",
		"maxInFlight=1",
	}
	for _, seed := range permitstest.Seeds(t, permitstest.Quarter(60), 600) {
		rng := rand.New(rand.NewPCG(seed, 9))
		limits := policies[rng.IntN(len(policies))]
		more := ""
		if rng.IntN(3) == 0 {
			more = "\n" + billing + " messageRate=80"
		}
		rtt := []time.Duration{0, 2 * ms, 30 * ms}[rng.IntN(3)]
		run(t, rtt, orders+" "+limits+more, func(t *testing.T, e *fixture) {
			handles := []*handle{e.open(""), e.open("")}
			if rng.IntN(2) == 0 {
				handles = append(handles, e.open("bulk"))
			}
			name := fmt.Sprintf("%s%s, rtt %v, %d handles: replay with THROTTLE_SEED=%d",
				limits, more, rtt, len(handles), seed)
			var wg sync.WaitGroup
			for range 40 + rng.IntN(40) {
				h, n := handles[rng.IntN(len(handles))], 1+rng.IntN(3)
				kind, use := rng.IntN(8), time.Duration(rng.IntN(15))*ms
				size, used := int64(rng.IntN(1000)-200), rng.IntN(n+1)
				patience := time.Duration(1+rng.IntN(60)) * ms
				wg.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					from := time.Now()
					switch kind {
					case 0, 1: // gives up
						time.AfterFunc(patience, cancel)
					case 2: // does not wait
						g, _, ok := h.Lane.TryAcquire(n)
						if ok && g.Admission != nil {
							time.Sleep(use)
							g.Settle(min(used, g.N), 500)
						}
						assert.LessOrEqual(t, time.Since(from), 301*ms, "a try: %s", name)
						return
					}
					g, err := h.Lane.Acquire(ctx, n, max(-1, size))
					if err != nil {
						assert.LessOrEqual(t, kind, 1, name)
						assert.LessOrEqual(t, time.Since(from), patience, name)
						return
					}
					assert.Positive(t, g.N, name)
					assert.LessOrEqual(t, time.Since(from), 15*time.Second, "stranded: %s", name)
					time.Sleep(use)
					if g.Admission != nil {
						g.Settle(min(used, g.N), 500)
					}
				})
				if rng.IntN(3) > 0 {
					time.Sleep(time.Duration(rng.IntN(40)) * ms)
				}
			}
			// A stranded caller keeps the bubble from ending. Close below answers it.
			waited := make(chan struct{})
			go func() { wg.Wait(); close(waited) }()
			select {
			case <-waited:
			case <-time.After(time.Minute):
				t.Errorf("a caller is stranded: %s", name)
			}
			synctest.Wait()
			for _, h := range handles {
				stats := h.Stats()
				assert.Zero(t, stats.Waiting, name)
				assert.Zero(t, stats.InFlight, name)
				h.Close()
			}
			time.Sleep(3 * time.Second)
			e.close()
			<-waited
		})
		if t.Failed() {
			return
		}
	}
}
