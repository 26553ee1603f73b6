package httpthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	httpthrottle "github.com/dispatchthrottle/throttle/adapters/http"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

// answered is what Error makes of an answer, which has no body to be closed.
func answered(status int, header ...string) error {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: untouched{}}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return httpthrottle.Error(resp)
}

// The body is left to the caller.
type untouched struct{}

func (untouched) Read([]byte) (int, error) { panic("read") }
func (untouched) Close() error             { panic("closed") }

func TestError(t *testing.T) {
	for _, status := range []int{200, 204, 302, 400, 404, 500, 502, 504} {
		assert.NoError(t, answered(status, "Retry-After", "5"), status)
	}
	assert.NoError(t, httpthrottle.Error(nil))
	err := answered(429, "Retry-After", "5")
	assert.EqualError(t, err, "busy, retry after 5s: 429 Too Many Requests")
	busy, ok := errors.AsType[*dispatch.BusyError](err)
	require.True(t, ok)
	assert.Equal(t, 5*time.Second, busy.RetryAfter)
	err = httpthrottle.Error(&http.Response{StatusCode: http.StatusServiceUnavailable,
		Status: "503 Full House", Body: untouched{}})
	assert.EqualError(t, err, "busy: 503 Full House")
}

const date = "Sun, 06 Nov 1994 08:49:37 GMT"

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		text, date string
		want       time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"3", "", 3 * time.Second},
		{"86400", "", httpthrottle.MaxRetryAfter},
		{"86401", "", 0},
		{"1795000000", "", 0}, // a date in seconds
		{"99999999999999999999", "", 0},
		{"-1", "", 0},
		{"+1", "", 0},
		{"1.5", "", 0},
		{"soon", "", 0},
		// the server's clock is what counts
		{"Sun, 06 Nov 1994 08:50:07 GMT", date, 30 * time.Second},
		{"Sunday, 06-Nov-94 08:50:07 GMT", date, 30 * time.Second},
		{"Sun Nov  6 08:50:07 1994", date, 30 * time.Second},
		{date, date, 0},
		{"Sun, 06 Nov 1994 08:49:36 GMT", date, 0},
		{"Mon, 07 Nov 1994 08:49:37 GMT", date, httpthrottle.MaxRetryAfter},
		{"Mon, 07 Nov 1994 08:49:38 GMT", date, 0},
		{date, "", 0}, // long ago
		{"30", "rubbish", 30 * time.Second},
	} {
		busy, ok := errors.AsType[*dispatch.BusyError](answered(503, "Retry-After", c.text, "Date", c.date))
		require.True(t, ok)
		assert.Equal(t, c.want, busy.RetryAfter, "%q at %q", c.text, c.date)
	}
	for _, date := range []string{"", "rubbish"} { // then it counts from now
		at := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
		busy, ok := errors.AsType[*dispatch.BusyError](answered(503, "Retry-After", at, "Date", date))
		require.True(t, ok)
		assert.LessOrEqual(t, busy.RetryAfter, time.Minute)
		assert.Greater(t, busy.RetryAfter, 50*time.Second)
	}
}

// FuzzRetryAfter: whatever a service says, the time is from 0 to the most that is believed, and
// whole seconds are what they say.
func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{"", "5", "-5", "86401", "99999999999999999999",
		"Sun, 06 Nov 1994 08:50:07 GMT", "Sun, 06 Nov 9994 08:50:07 GMT"} {
		f.Add(text, date)
		f.Add(text, "")
	}
	f.Fuzz(func(t *testing.T, text, date string) {
		busy, ok := errors.AsType[*dispatch.BusyError](answered(429, "Retry-After", text, "Date", date))
		require.True(t, ok)
		require.GreaterOrEqual(t, busy.RetryAfter, time.Duration(0))
		require.LessOrEqual(t, busy.RetryAfter, httpthrottle.MaxRetryAfter)
		if n, err := strconv.Atoi(text); err == nil && strings.Trim(text, "0123456789") == "" &&
			n <= 86400 {
			require.Equal(t, time.Duration(n)*time.Second, busy.RetryAfter)
		}
	})
}

// server answers with the status that the path names: /429?after=5, /slow not before the client
// has gone.
func server(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		status, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil {
			status = http.StatusTeapot
		}
		if after := r.URL.Query().Get("after"); after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "because")
	}))
	t.Cleanup(s.Close)
	return s
}

// get is one request, whose body must be there.
func get(ctx context.Context, t *testing.T, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode != http.StatusNoContent {
		require.Equal(t, "because", string(body))
	}
	return nil
}

func TestTransport(t *testing.T) {
	s := server(t)
	for _, c := range []struct {
		path  string
		want  dispatch.Outcome
		after time.Duration
	}{
		{"/200", dispatch.OutcomeOK, 0},
		{"/204", dispatch.OutcomeOK, 0},
		{"/404?after=5", dispatch.OutcomeOK, 0},
		{"/429", dispatch.OutcomeBusy, 0},
		{"/429?after=5", dispatch.OutcomeBusy, 5 * time.Second},
		{"/503?after=7", dispatch.OutcomeBusy, 7 * time.Second},
		{"/500?after=5", dispatch.OutcomeFailed, 0},
		{"/504", dispatch.OutcomeFailed, 0},
	} {
		o, after := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
			client := &http.Client{Transport: httpthrottle.Transport(sub, nil)}
			defer client.CloseIdleConnections()
			require.NoError(t, get(t.Context(), t, client, s.URL+c.path))
		})
		assert.Equal(t, c.want, o, c.path)
		assert.Equal(t, c.after, after, c.path)
	}
}

// TestTransportErrors: an error is reported, and returned unchanged.
func TestTransportErrors(t *testing.T) {
	s := server(t)
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, c := range map[string]struct {
		url    string
		ctx    func() (context.Context, context.CancelFunc)
		client http.Client
		base   func(*http.Transport)
		want   dispatch.Outcome
	}{
		"no listener": {url: gone.URL, want: dispatch.OutcomeFailed},
		"canceled": {want: dispatch.OutcomeIgnored,
			ctx: func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(50*time.Millisecond, cancel)
				return ctx, cancel
			}},
		"canceled for a cause": {want: dispatch.OutcomeIgnored,
			ctx: func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("rebalance")) })
				return ctx, func() { cancel(nil) }
			}},
		"the context's deadline": {want: dispatch.OutcomeTimeout,
			ctx: func() (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("late"))
			}},
		"the client's time-out": {want: dispatch.OutcomeTimeout, client: http.Client{Timeout: 50 * time.Millisecond}},
		"no header in time": {want: dispatch.OutcomeTimeout,
			base: func(b *http.Transport) { b.ResponseHeaderTimeout = 50 * time.Millisecond }},
		"no connection in time": {want: dispatch.OutcomeTimeout, base: func(b *http.Transport) {
			b.DialContext = (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).DialContext
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
				ctx := t.Context()
				if c.ctx != nil {
					var cancel context.CancelFunc
					ctx, cancel = c.ctx()
					defer cancel()
				}
				base := &http.Transport{}
				if c.base != nil {
					c.base(base)
				}
				client := c.client
				client.Transport = httpthrottle.Transport(sub, base)
				defer client.CloseIdleConnections()
				url := c.url
				if url == "" {
					url = s.URL + "/slow"
				}
				require.Error(t, get(ctx, t, &client, url))
			})
			assert.Equal(t, c.want, o)
		})
	}
}

// TestTransportWithout: without a subscription, it is base.
func TestTransportWithout(t *testing.T) {
	s := server(t)
	client := &http.Client{Transport: httpthrottle.Transport(nil, nil)}
	defer client.CloseIdleConnections()
	require.NoError(t, get(t.Context(), t, client, s.URL+"/503"))
}

func ExampleError() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer s.Close()
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	err = httpthrottle.Error(resp)
	fmt.Println(err)
	o, retryAfter := dispatch.OutcomeOf(err)
	fmt.Println(o == dispatch.OutcomeBusy, retryAfter)
	// Output:
	// busy, retry after 3s: 429 Too Many Requests
	// true 3s
}

// Busy answers lower a limit of the subscription, with nothing in the handler that says so.
func ExampleTransport() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer s.Close()
	ctx := context.Background()
	lim, _ := dispatch.Open(ctx, dispatch.Config{}) // or throttle.FromEnv(ctx)
	defer func() { _ = lim.Close() }()
	sub, _ := lim.Subscription("kafka://public/default/orders", "billing")

	client := &http.Client{Transport: httpthrottle.Transport(sub, nil)}
	defer client.CloseIdleConnections()
	err := sub.Do(ctx, func(context.Context) error {
		resp, err := client.Get(s.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		fmt.Println(resp.Status)
		return nil
	})
	fmt.Println(err, sub.Limited())
	// Output:
	// 503 Service Unavailable
	// <nil> true
}
