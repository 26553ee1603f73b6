// Command numaflow-sink is a sink for Numaflow: it posts each message to a web service under a
// shared limit, and slows down while the service is busy (429 or 503). A message that the service
// was too busy for is posted again after Retry-After, or after a second; so is a message that
// gets another 5xx, or that comes while the service is down. The batch waits meanwhile, and no
// message is lost. A message that the service refuses for another reason fails, and the vertex's
// retryStrategy applies. Dockerfile and monovertex.yaml deploy it. Its environment is
//
//	SINK_URL=http://host:port/path
//	THROTTLE_POLICIES=etcd://host:2379 THROTTLE_PERMITS=redis://host:6379
//
// and its limit is that of the vertex:
//
//	throttle-admin set-msg-rate numaflow://NAMESPACE/VERTEX/VERTEX 50
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"

	"github.com/dispatchthrottle/throttle"
	httpthrottle "github.com/dispatchthrottle/throttle/adapters/http"
	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
)

func main() {
	sockets := flag.String("sockets", "/var/run/numaflow", "directory of the data plane's sockets")
	flag.Parse()
	if err := run(context.Background(), *sockets); err != nil {
		slog.Error("numaflow-sink failed", "error", err)
		os.Exit(1)
	}
}

// run serves the data plane until SIGTERM.
func run(ctx context.Context, sockets string) (err error) {
	target, err := url.Parse(os.Getenv("SINK_URL"))
	if err != nil || target.Host == "" {
		return fmt.Errorf("SINK_URL %q: invalid URL: want http://host:port/path",
			os.Getenv("SINK_URL"))
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }() // returns allocated permits
	topic, err := numaflowthrottle.Topic()
	if err != nil {
		return err
	}
	sub, err := lim.Subscription(topic.String(), topic.Name) // the vertex, as for the Sink below
	if err != nil {
		return err
	}
	client := &http.Client{
		Transport: httpthrottle.Transport(sub, nil),
		Timeout:   10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a redirect would lose the body
		},
	}
	s := &service{target.String(), client}
	sink, err := numaflowthrottle.Sink(s, lim, numaflowthrottle.WithProcess(ctx))
	if err != nil {
		return err
	}
	return sinker.NewServer(sink, sinker.WithSockAddr(sockets+"/sink.sock"),
		sinker.WithServerInfoFilePath(sockets+"/sinker-server-info")).Start(ctx)
}

// A service gets the messages.
type service struct {
	url    string
	client *http.Client
}

// concurrency is how many messages of a slice are posted at a time.
const concurrency = 16

// Sink posts each message, and answers it.
func (s *service) Sink(ctx context.Context, in <-chan sinker.Datum) sinker.Responses {
	var mu sync.Mutex
	var responses sinker.Responses
	var posting sync.WaitGroup
	slots := make(chan struct{}, concurrency)
	for d := range in {
		slots <- struct{}{}
		posting.Go(func() {
			r := s.post(ctx, d)
			mu.Lock()
			responses = append(responses, r)
			mu.Unlock()
			<-slots
		})
	}
	posting.Wait()
	return responses
}

func (s *service) post(ctx context.Context, d sinker.Datum) sinker.Response {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url,
		bytes.NewReader(d.Value()))
	if err != nil {
		return sinker.ResponseFailure(d.ID(), err.Error())
	}
	answer, err := s.client.Do(request)
	if err != nil { // a failure would be retried at once, and dropped after some steps
		slog.Warn("the service is unavailable", "error", err)
		return numaflowthrottle.Busy(d.ID(), time.Second)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body) // so that the connection is reused
	switch {
	case answer.StatusCode < 300:
		return sinker.ResponseOK(d.ID())
	case answer.StatusCode == http.StatusTooManyRequests, answer.StatusCode >= 500:
		return numaflowthrottle.Busy(d.ID(), retryAfter(answer))
	}
	return sinker.ResponseFailure(d.ID(), "the service answered "+answer.Status)
}

// retryAfter returns how long to wait before the next attempt: a second, if the service does not
// say.
func retryAfter(answer *http.Response) time.Duration {
	_, after := dispatch.OutcomeOf(httpthrottle.Error(answer))
	return cmp.Or(after, time.Second)
}
