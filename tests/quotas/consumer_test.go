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
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// workers is the number of messages that a consumer posts at the same time.
const workers = 24

// A consumer is a process that posts the messages of a topic to the sink.
type consumer struct {
	Name      string
	ID        quota.ID // throttling id of the messages, sent to the sink
	Brokers   []string
	Topic     string // in Kafka
	Namespace string // of the topic: tenant/namespace
	Tag       string // empty: the tenant's quota applies
	Group     string // Kafka consumer group
	Sink      string // its URL
	Meter     bool   // counts the costs of messages on the sink, and reports the sink's load
	Keeps     bool   // runs a ratekeeper
}

// run posts messages until its input ends.
func (c consumer) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	options := []throttle.Option{throttle.WithReplica(c.Name), throttle.WithOpenTimeout(throttletest.Patience)}
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
		Brokers: c.Brokers, Topic: c.Topic, GroupID: c.Group,
		CommitInterval: time.Second, MaxWait: 500 * time.Millisecond, ReadLagInterval: -1,
	}, lim, kafkathrottle.WithNamespace(c.Namespace), kafkathrottle.WithOwner(owner...))
	if err != nil {
		return errors.Join(err, lim.Close())
	}
	// A second handle of the reader's subscription has the permits for posting again.
	sub, err := lim.Subscription("kafka://"+c.Namespace+"/"+c.Topic, c.Group, owner...)
	if err != nil {
		return errors.Join(err, r.Close(), lim.Close())
	}
	transport := httpthrottle.Transport(sub, &http.Transport{MaxIdleConnsPerHost: workers})
	p := poster{consumer: c, sub: sub, client: &http.Client{Transport: transport}}
	var all sync.WaitGroup
	if c.Meter {
		if p.sink, err = lim.Backend("sink", "sink"); err != nil {
			return errors.Join(err, r.Close(), lim.Close())
		}
		all.Go(func() { p.reportLoad(ctx) })
	}
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := p.next(ctx, r); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, c.Name+":", err) // the next call tries again
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
	sink   *dispatch.Backend // nil: the sink reports its own costs
}

// next posts a message, each time with a permit, until the sink accepts it.
func (p *poster) next(ctx context.Context, r *kafkathrottle.Reader) error {
	m, err := r.FetchMessage(ctx)
	if err != nil {
		return err
	}
	for {
		p.sink.Wrote(p.sub, int64(len(m.Value))) // also if the answer is busy: see sink.costs
		err := p.post(ctx, m.Value)
		if _, busy := errors.AsType[*dispatch.BusyError](err); !busy {
			if err == nil {
				err = r.CommitMessages(ctx, m)
			}
			return err
		}
		if _, err := p.sub.Acquire(ctx, 1); err != nil { // the whole grant is used: no Done
			return err
		}
	}
}

// post sends one request to the sink; Transport reports the outcome.
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

// reportLoad reports the sink's load several times a second, since a replica publishes the last
// value once a second.
func (p *poster) reportLoad(ctx context.Context) {
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
