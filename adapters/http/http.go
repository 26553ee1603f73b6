// Package httpthrottle tells a dispatch.Subscription how the HTTP services that its handlers call have answered, so that it slows down for
// busy ones:
//
//	client := &http.Client{Transport: httpthrottle.Transport(sub, nil)}
//
// or, where the handler's own error is reported, as by [dispatch.Reporting]:
//
//	resp, err := client.Do(request)
//	if err != nil {
//		return err
//	}
//	defer resp.Body.Close()
//	if err := httpthrottle.Error(resp); err != nil {
//		return err // with a *dispatch.BusyError in it
//	}
//
// Use one of the two: what both report counts twice. Neither waits for permits, nor tries again, nor touches a body.
package httpthrottle

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// MaxRetryAfter is the longest Retry-After that is believed. More is taken for a mistake, such as a date in seconds.
const MaxRetryAfter = 24 * time.Hour

// Error is nil unless the answer is 429 Too Many Requests or 503 Service Unavailable; then it is a *[dispatch.BusyError] that names the
// status. Its RetryAfter is the header's: whole seconds, or an HTTP date, which counts from the answer's Date, or from now if there is none.
// What is missing, past, unreadable or above [MaxRetryAfter] is 0. Error leaves the body alone: close it as ever. A nil resp is no error.
func Error(resp *http.Response) error {
	if resp == nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return nil
	}
	text := cmp.Or(resp.Status, strconv.Itoa(resp.StatusCode)+" "+http.StatusText(resp.StatusCode))
	return &dispatch.BusyError{RetryAfter: retryAfter(resp.Header), Err: errors.New(text)}
}

func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		if seconds > uint64(MaxRetryAfter/time.Second) {
			return 0
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		from = time.Now()
	}
	if d := at.Sub(from); d > 0 && d <= MaxRetryAfter {
		return d
	}
	return 0
}

// Transport returns base with a report to sub of each round trip's outcome: 429 and 503 are busy, as by [Error], any other 5xx is failed, any
// other answer ok; errors are as [dispatch.OutcomeOf] says, and ignored or a time-out if the request's context has ended. Each redirect is a
// round trip of its own. What happens to the body later is not reported. A nil base is [http.DefaultTransport]; a nil sub gets no reports. It
// may be used at once by as many goroutines as base.
func Transport(sub *dispatch.Subscription, base http.RoundTripper) http.RoundTripper {
	return &transport{sub, base}
}

type transport struct {
	sub  *dispatch.Subscription
	base http.RoundTripper
}

// RoundTrip is base's.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := cmp.Or(t.base, http.DefaultTransport).RoundTrip(r)
	t.sub.ReportOutcome(outcome(r, resp, err))
	return resp, err
}

func outcome(r *http.Request, resp *http.Response, err error) (dispatch.Outcome, time.Duration) {
	if err == nil {
		if resp != nil && resp.StatusCode >= 500 && resp.StatusCode != http.StatusServiceUnavailable {
			return dispatch.OutcomeFailed, 0
		}
		return dispatch.OutcomeOf(Error(resp))
	}
	o, retryAfter := dispatch.OutcomeOf(err)
	if o != dispatch.OutcomeFailed {
		return o, retryAfter
	}
	if ended := r.Context().Err(); ended != nil { // err is its cause
		return dispatch.OutcomeOf(ended)
	}
	if at, ok := r.Context().Deadline(); ok && !time.Now().Before(at) { // a client's Timeout has a timer of its own, which may be first
		return dispatch.OutcomeTimeout, 0
	}
	return dispatch.OutcomeFailed, 0
}

// CloseIdleConnections is base's, for [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	if c, ok := cmp.Or(t.base, http.DefaultTransport).(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
