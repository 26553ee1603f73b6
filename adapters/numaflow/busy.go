package numaflowthrottle

import (
	"errors"
	"slices"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"
)

// Busy is a sink's answer for a datum when the system that it writes to was busy, as by an HTTP
// 429. After retryAfter the wrapper passes the datum to the user's sink again, with another permit;
// meanwhile the data plane waits. With [WithNacks] the datum goes back to the source instead.
// Without a wrapper, as with a nil Limiter, the answer is a failure.
func Busy(id string, retryAfter time.Duration) sinker.Response {
	delay := uint64(max(0, retryAfter.Milliseconds()))
	r := sinker.ResponseFailure(id, "busy")
	r.NackOptions = &sinker.NackOptions{Delay: &delay, Reason: new("busy")}
	return r
}

// busyFor reports whether a is from Busy: the SDK's failures have no NackOptions.
func busyFor(a sinker.Response) (retryAfter time.Duration, busy bool) {
	if a.Success || a.Fallback || a.Serve || a.OnSuccess || a.Nack ||
		a.NackOptions == nil || a.NackOptions.Delay == nil {
		return 0, false
	}
	return time.Duration(*a.NackOptions.Delay) * time.Millisecond, true
}

// A busyDatum is to be passed to the user's sink again.
type busyDatum struct {
	sinker.Datum
	at time.Time
}

func (b *sinkBatch) retryAfter(d sinker.Datum, after time.Duration) {
	b.busy = append(b.busy, busyDatum{d, time.Now().Add(after)})
}

// due waits for the busy data whose time comes first, and returns them. If busy data are to be
// handed back first, it hands all of them back.
func (b *sinkBatch) due() <-chan sinker.Datum {
	first := slices.MinFunc(b.busy, func(x, y busyDatum) int { return x.at.Compare(y.at) }).at
	timer := time.NewTimer(time.Until(first.Add(sliceTime))) // data due just after it join its call
	defer timer.Stop()
	in := make(chan sinker.Datum, len(b.busy))
	defer close(in)
	select {
	case <-timer.C:
	case <-b.waiting.Done():
		var data []sinker.Datum
		for _, d := range b.busy {
			data = append(data, d.Datum)
		}
		b.busy = nil
		b.handBackData(data, errBusy)
		return in
	}
	now := time.Now()
	b.busy = slices.DeleteFunc(b.busy, func(d busyDatum) bool {
		due := !d.at.After(now)
		if due {
			in <- d.Datum
		}
		return due
	})
	return in
}

var errBusy = errors.New("numaflowthrottle: the process stops while a protected system is busy")
