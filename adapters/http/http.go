// Package httpthrottle reports to a dispatch.Subscription how the HTTP services that its handlers
// call have answered, so that it slows down while they are busy:
//
//	client := &http.Client{Transport: httpthrottle.Transport(sub, nil)}
//
// Where the handler's own error is reported, as by [dispatch.Reporting], use Error instead:
//
//	resp, err := client.Do(request)
//	if err != nil {
//		return err
//	}
//	defer resp.Body.Close()
//	if err := httpthrottle.Error(resp); err != nil {
//		return err // it wraps a *dispatch.BusyError
//	}
//
// Use one of the two, since each reports the answer. Neither waits for permits, retries, or reads
// a body.
package httpthrottle

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// MaxRetryAfter is the longest Retry-After that is used. A longer one is ignored as a mistake,
// such as a date in seconds.
const MaxRetryAfter = 24 * time.Hour

// Error returns a *[dispatch.BusyError] with the status if the answer is 429 Too Many Requests or
// 503 Service Unavailable, and otherwise nil. Its RetryAfter is that of the header: whole
// seconds, or an HTTP date, which is relative to the answer's Date, or to now if there is none.
// It is 0 if the header is missing, past, invalid or above [MaxRetryAfter]. Error does not read
// or close the body. A nil resp is not an error.
func Error(resp *http.Response) error {
	if resp == nil || !busy(resp.StatusCode) {
		return nil
	}
	text := cmp.Or(resp.Status, strconv.Itoa(resp.StatusCode)+" "+http.StatusText(resp.StatusCode))
	return &dispatch.BusyError{RetryAfter: retryAfter(resp.Header), Err: errors.New(text)}
}

func busy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
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

// Transport returns base with a report to sub of each round trip's outcome. 429 and 503 are busy,
// as for [Error]; any other 5xx is failed; any other answer is ok. Errors are as
// [dispatch.OutcomeOf] says; but if the request's context has ended, they are ignored or a
// timeout. Each redirect is a round trip of its own. Errors that come later, with the body, are
// not reported. A nil base is
// [http.DefaultTransport]; a nil sub gets no reports. The result is safe for concurrent use if base
// is.
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
		if resp != nil && resp.StatusCode >= 500 && !busy(resp.StatusCode) {
			return dispatch.OutcomeFailed, 0
		}
		return dispatch.OutcomeOf(Error(resp))
	}
	o, retryAfter := dispatch.OutcomeOf(err)
	if o != dispatch.OutcomeFailed {
		return o, retryAfter
	}
	if ended := r.Context().Err(); ended != nil { // err comes from that
		return dispatch.OutcomeOf(ended)
	}
	// A client's Timeout has a timer of its own, which may fire before the context's.
	if at, ok := r.Context().Deadline(); ok && !time.Now().Before(at) {
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
