package quotas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle"
	httpthrottle "github.com/dispatchthrottle/throttle/adapters/http"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/tests/fleet"
)

// workers is the number of messages that a consumer posts at once.
const workers = 24

// A consumer is a process that posts the messages of a topic to the sink.
type consumer struct {
	Name      string
	ID        quota.ID // of the messages, for the sink
	Brokers   []string
	Topic     string // in Kafka
	Namespace string // of it, tenant/namespace
	Tag       string // none: the tenant's quota applies
	Group     string
	Sink      string // its URL
	Meter     bool   // reports the cost of messages to the sink, and its load
	Keeps     bool   // is a candidate for the ratekeeper
}

// run posts until its input ends.
func (c consumer) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	options := []throttle.Option{throttle.WithReplica(c.Name)}
	if c.Keeps {
		options = append(options, throttle.WithRatekeeper())
	}
	lim, err := throttle.FromEnv(ctx, options...)
	if err != nil {
		return err
	}
	var owner []dispatch.SubscriptionOption
	if c.Tag != "" {
		owner = append(owner, dispatch.WithTag(c.Tag))
	}
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: c.Brokers, Topic: c.Topic, GroupID: c.Group, CommitInterval: time.Second, MaxWait: 500 * time.Millisecond, ReadLagInterval: -1,
	}, lim, kafkathrottle.WithNamespace(c.Namespace), kafkathrottle.WithOwner(owner...))
	if err != nil {
		return errors.Join(err, lim.Close())
	}
	// The permits of the reader's subscription, for messages that are posted again.
	sub, err := lim.Subscription("kafka://"+c.Namespace+"/"+c.Topic, c.Group, owner...)
	if err != nil {
		return errors.Join(err, r.Close(), lim.Close())
	}
	p := poster{consumer: c, sub: sub, client: &http.Client{Transport: httpthrottle.Transport(sub, &http.Transport{MaxIdleConnsPerHost: workers})}}
	var all sync.WaitGroup
	if c.Meter {
		if p.sink, err = lim.Backend("sink", "sink"); err != nil {
			return errors.Join(err, r.Close(), lim.Close())
		}
		all.Go(func() { p.passOnLoad(ctx) })
	}
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := p.next(ctx, r); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, c.Name+":", err) // such as a group that cannot form yet
				}
			}
		})
	}
	all.Wait()
	return errors.Join(r.Close(), lim.Close())
}

// A poster posts the messages of its consumer.
type poster struct {
	consumer
	sub    *dispatch.Subscription
	client *http.Client
	sink   *dispatch.Backend // nil: the sink counts by itself
}

// next posts a message until the sink accepts it, with a permit for each attempt.
func (p *poster) next(ctx context.Context, r *kafkathrottle.Reader) error {
	m, err := r.FetchMessage(ctx)
	if err != nil {
		return err
	}
	for {
		p.sink.Wrote(p.sub, int64(len(m.Value))) // busy or not: see sink.costs
		err := p.post(ctx, m.Value)
		if _, busy := errors.AsType[*dispatch.BusyError](err); !busy {
			if err == nil {
				err = r.CommitMessages(ctx, m)
			}
			return err
		}
		if _, err := p.sub.Acquire(ctx, 1); err != nil { // always used
			return err
		}
	}
}

// post posts once; Transport reports the outcome.
func (p *poster) post(ctx context.Context, value []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Sink+"/orders", bytes.NewReader(value))
	if err != nil {
		return err
	}
	request.Header.Set(idHeader, string(p.ID))
	request.Header.Set(consumerHeader, p.Name)
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // so that the connection is reused
	return errors.Join(httpthrottle.Error(response), err)
}

// passOnLoad reports the load that the sink states. It does so often, since a replica publishes the
// last report once a second.
func (p *poster) passOnLoad(ctx context.Context) {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		load, err := askLoad(ctx, p.Sink)
		if err == nil {
			err = p.sink.ReportLoad(load)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, p.Name+": the sink's load:", err)
		}
	}
}

func askLoad(ctx context.Context, sink string) (load quota.Load, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, sink+"/load", nil)
	if err != nil {
		return load, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return load, err
	}
	defer response.Body.Close()
	return load, json.NewDecoder(response.Body).Decode(&load)
}
