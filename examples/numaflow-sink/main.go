// Command numaflow-sink is a ready sink for Numaflow: it posts each message to a web service, under a shared limit, and slows down
// while the service is busy (429 or 503). What was too much for it is posted again when Retry-After is over, or in a second; so is
// all that meets another 5xx, or comes while the service is down: the batch waits, and no message is lost. What the service refuses for another
// reason fails, and is left to the vertex's retryStrategy. The Dockerfile and monovertex.yaml beside it put it into a cluster; it reads
//
//	SINK_URL=http://host:port/path
//	THROTTLE_POLICIES=etcd://host:2379 THROTTLE_PERMITS=redis://host:6379
//
// and the limit is that of the vertex:
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
		slog.Error("numaflow-sink has ended", "error", err)
		os.Exit(1)
	}
}

// run serves the data plane until a SIGTERM.
func run(ctx context.Context, sockets string) (err error) {
	target, err := url.Parse(os.Getenv("SINK_URL"))
	if err != nil || target.Host == "" {
		return errors.New("SINK_URL: is no URL: write http://host:port/path")
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	lim, err := throttle.FromEnv(ctx, throttle.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }() // gives back what is allocated
	topic, err := numaflowthrottle.Topic()
	if err != nil {
		return err
	}
	sub, err := lim.Subscription(topic.String(), topic.Name) // the vertex's, as of the Sink below
	if err != nil {
		return err
	}
	client := &http.Client{
		Transport:     httpthrottle.Transport(sub, nil),
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would lose the body
	}
	sink, err := numaflowthrottle.Sink(&service{target.String(), client}, lim, numaflowthrottle.WithProcess(ctx))
	if err != nil {
		return err
	}
	return sinker.NewServer(sink, sinker.WithSockAddr(sockets+"/sink.sock"), sinker.WithServerInfoFilePath(sockets+"/sinker-server-info")).Start(ctx)
}

// A service is where messages are posted to.
type service struct {
	url    string
	client *http.Client
}

// atOnce is how many messages of a slice are posted at once.
const atOnce = 16

// Sink posts what it is given, and answers each.
func (s *service) Sink(ctx context.Context, in <-chan sinker.Datum) sinker.Responses {
	var mu sync.Mutex
	var responses sinker.Responses
	var posting sync.WaitGroup
	slots := make(chan struct{}, atOnce)
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
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(d.Value()))
	if err != nil {
		return sinker.ResponseFailure(d.ID(), err.Error())
	}
	answer, err := s.client.Do(request)
	if err != nil { // a failure would be tried again at once, and dropped after some steps
		slog.Warn("the service is away", "error", err)
		return numaflowthrottle.Busy(d.ID(), time.Second)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body) // so that the connection is used again
	switch {
	case answer.StatusCode < 300:
		return sinker.ResponseOK(d.ID())
	case answer.StatusCode == http.StatusTooManyRequests, answer.StatusCode >= 500:
		return numaflowthrottle.Busy(d.ID(), retryAfter(answer))
	}
	return sinker.ResponseFailure(d.ID(), fmt.Sprint("the service says ", answer.Status))
}

// retryAfter is when the service may be asked again: in a second if it does not say.
func retryAfter(answer *http.Response) time.Duration {
	_, after := dispatch.OutcomeOf(httpthrottle.Error(answer))
	return cmp.Or(after, time.Second)
}
