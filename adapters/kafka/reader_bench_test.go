package kafkathrottle_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// BenchmarkUnlimited reads the same messages with a kafka.Reader, and with a Reader to which no
// limit applies, in alternating pairs. It reports the median of their ratios: 1 is the speed of
// kafka-go. A nil Limiter already costs the copy of a kafka.Message through one more function.
func BenchmarkUnlimited(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB/throttle", size), func(b *testing.B) { benchmarkUnlimited(b, size) })
	}
}

func benchmarkUnlimited(b *testing.B, size int) {
	const messages, batch = 150_000, 100_000
	_, brokers := broker(b, 1, "orders")
	fill(b, brokers, "orders", 1, messages, size)
	lim := throttletest.Open(b, policy.Policy{})

	type fetcher interface {
		FetchMessage(context.Context) (kafka.Message, error)
		SetOffset(int64) error
		Close() error
	}
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxWait: 100 * time.Millisecond,
		ReadLagInterval: -1}
	bare := kafka.NewReader(cfg)
	wrapped, err := kafkathrottle.NewReader(cfg, lim.Limiter)
	require.NoError(b, err)
	defer func() { require.NoError(b, bare.Close()); require.NoError(b, wrapped.Close()) }()
	ctx := b.Context()
	read := func(f fetcher) time.Duration {
		require.NoError(b, f.SetOffset(0))
		_, err := f.FetchMessage(ctx) // it is connected
		require.NoError(b, err)
		runtime.GC()
		start := time.Now()
		for range batch {
			if _, err := f.FetchMessage(ctx); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start)
	}
	read(bare)
	read(wrapped)
	var ratios []float64
	var alone, with time.Duration
	for b.Loop() {
		var x, y time.Duration
		if len(ratios)%2 == 0 {
			x, y = read(bare), read(wrapped)
		} else {
			y, x = read(wrapped), read(bare)
		}
		ratios = append(ratios, float64(x)/float64(y))
		alone, with = alone+x, with+y
	}
	slices.Sort(ratios)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratios[len(ratios)/2], "x-bare-speed")
	b.ReportMetric(float64(alone)/float64(len(ratios)*batch), "bare-ns/msg")
	b.ReportMetric(float64(with)/float64(len(ratios)*batch), "wrapped-ns/msg")
}
