package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/etcd"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// A world is what the demo runs on: a store of policies, a permit store of permits, a broker and a topic with a backlog.
type world struct {
	cluster     string
	policiesURL string
	store       configstore.Store // the administrator's
	broker      broker
	topic       string // the broker's
	full        policy.Topic
	sharing     string                      // empty: the default
	ends        [demoLanes]int64            // offsets behind the last messages written; only the writer changes them
	starts      map[string][demoLanes]int64 // where groups begin

	openPermits func() (dispatch.PermitStore, error) // as a process does
	closers     []func() error                       // in the order in which things were opened
}

// A broker has the demo's topic. Its messages are counted in lanes: of a partition, or every so-manieth.
type broker interface {
	write(ctx context.Context, lane int, from int64, n int) error            // appends messages of a lane
	begin(ctx context.Context, group string, ends [demoLanes]int64) error    // has a group begin behind what is written
	reader(group string, number int, lim *dispatch.Limiter) (drainer, error) // of a group, from 1
	Close() error                                                            // removes what the demo has made
}

// A drainer reads as one of a group, and commits what it has read.
type drainer interface {
	next(ctx context.Context) (lane int, offset int64, err error)
	Close() error
}

// openWorld opens a world with so many messages in its topic; a group in begin has only so many of them left to read.
// The world is to be closed even if there is an error.
func (d *demo) openWorld(ctx context.Context, messages int, begin map[string]int) (w *world, err error) {
	w = &world{cluster: d.app.Cluster, policiesURL: d.store, topic: "demo-orders", sharing: d.sharing, starts: map[string][demoLanes]int64{}}
	if d.store != "" || d.permits != "" || d.kafka != "" || d.pulsar != "" {
		w.topic += "-" + strings.ToLower(rand.Text()[:8])
	}
	scheme := policy.Kafka
	if d.pulsar != "" {
		scheme = policy.Persistent
	}
	if w.full, err = policy.ParseTopic(scheme + "://public/default/" + w.topic); err != nil {
		return w, err
	}
	if err := w.openStore(ctx); err != nil {
		return w, err
	}
	w.onClose(w.removePolicy)
	if url := w.permitsURL(d.permits); url == inMemory {
		shared := memory.New()
		w.openPermits = func() (dispatch.PermitStore, error) { return shared, nil }
	} else {
		w.openPermits = func() (dispatch.PermitStore, error) { return throttle.OpenPermits(url) }
	}
	if err := w.checkPermits(ctx); err != nil {
		return w, err
	}
	if d.pulsar != "" {
		w.broker, err = openPulsar(d.pulsar, w.full.String())
	} else {
		w.broker, err = openKafka(ctx, d.kafka, w.topic)
	}
	if err != nil {
		return w, err
	}
	w.onClose(w.broker.Close)
	return w, w.fill(ctx, messages, begin)
}

func (w *world) onClose(f func() error) { w.closers = append(w.closers, f) }

// Close ends what the world has started and removes what it has made, the last first.
func (w *world) Close() error {
	var errs []error
	for i := len(w.closers) - 1; i >= 0; i-- {
		errs = append(errs, w.closers[i]())
	}
	w.closers = nil
	return errors.Join(errs...)
}

func (w *world) openStore(ctx context.Context) (err error) {
	if w.policiesURL == "" {
		dir, err := os.MkdirTemp("", "throttle-demo-")
		if err != nil {
			return err
		}
		w.onClose(func() error { return os.RemoveAll(dir) })
		server, err := etcd.Start(ctx, dir, "127.0.0.1:0", false)
		if err != nil {
			return err
		}
		w.onClose(func() error { server.Close(); return nil })
		w.policiesURL = etcd.URL(server)
	}
	if w.store, err = throttle.OpenPolicies(ctx, w.policiesURL); err != nil {
		return cli.Usage(err)
	}
	w.onClose(w.store.Close)
	admin := &cli.App{PoliciesURL: w.policiesURL}
	return admin.WithStore(ctx, func(ctx context.Context, store configstore.Store) error { // is it there?
		_, err := store.List(ctx)
		return err
	})
}

// permitsURL is where the permits are: where they are to be, or in the etcd that has the policies, or else here.
func (w *world) permitsURL(wanted string) string {
	switch {
	case wanted != "":
		return wanted
	case strings.HasPrefix(w.policiesURL, "etcd:"):
		return w.policiesURL
	}
	return inMemory
}

// checkPermits asks the permit store for something once: a Limiter would go on without it, and there would be nothing to see.
func (w *world) checkPermits(ctx context.Context) error {
	permits, err := w.openPermits()
	if err != nil {
		return cli.Usage(err)
	}
	if _, err := permits.Published(ctx, w.cluster); err != nil {
		err = cli.Hint(fmt.Errorf("the permit store: %w", err), "check --permits, and whether it is up")
		return errors.Join(err, permits.Close())
	}
	return permits.Close()
}

// openLimiter opens a Limiter as a process would.
func (w *world) openLimiter(ctx context.Context, replica, group string) (*dispatch.Limiter, error) {
	store, err := throttle.OpenPolicies(ctx, w.policiesURL)
	if err != nil {
		return nil, err
	}
	permits, err := w.openPermits()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	end := func() error { return errors.Join(store.Close(), permits.Close()) }
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: configstore.Source(store), Permits: permits, Cluster: w.cluster, Group: group, Replica: replica, OnClose: end,
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return lim, nil
}

// setRate sets the topic's limit, and how it is shared, and returns the revision at which that is in force.
func (w *world) setRate(ctx context.Context, rate policy.Rate) (int64, error) {
	p := policy.Policy{MessageRate: rate, Sharing: policy.Sharing(w.sharing)}
	if p.Sharing == policy.Groups {
		p.Groups = policy.Names(strings.Join(demoWorkers[:], ","))
	}
	ctx, cancel := context.WithTimeout(ctx, cli.StoreTimeout)
	defer cancel()
	return configstore.Edit(ctx, w.store, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.TopicScope(w.full), p), nil
	})
}

// cleanUp bounds how long it takes to remove what the demo has made in real services.
const cleanUp = 5 * time.Second

func (w *world) removePolicy() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	_, err := configstore.Edit(ctx, w.store, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Remove(policy.TopicScope(w.full)), nil
	})
	if err != nil {
		return fmt.Errorf("the demo's policy is still there: throttle-admin remove %s: %w", w.full, err)
	}
	return nil
}

// fill writes messages to all lanes; groups begin on the way.
func (w *world) fill(ctx context.Context, messages int, begin map[string]int) error {
	groups := slices.Clone(demoGroups)
	left := func(group string) int {
		if n, ok := begin[group]; ok {
			return min(n, messages)
		}
		return messages
	}
	slices.SortFunc(groups, func(a, b string) int { return left(b) - left(a) })
	for _, group := range groups {
		if err := w.writeUpTo(ctx, messages-left(group)); err != nil {
			return err
		}
		if err := w.broker.begin(ctx, group, w.ends); err != nil {
			return err
		}
		w.starts[group] = w.ends
	}
	return w.writeUpTo(ctx, messages)
}

// writeUpTo writes to all lanes until the topic has had so many messages.
func (w *world) writeUpTo(ctx context.Context, messages int) error {
	var writers sync.WaitGroup
	var errs [demoLanes]error
	for lane := range demoLanes {
		writers.Go(func() { errs[lane] = w.write(ctx, lane, messages/demoLanes-int(w.ends[lane])) })
	}
	writers.Wait()
	return errors.Join(errs[:]...)
}

func (w *world) write(ctx context.Context, lane, n int) error {
	if n <= 0 {
		return nil
	}
	if err := w.broker.write(ctx, lane, w.ends[lane], n); err != nil {
		return fmt.Errorf("write to %s: %w", w.topic, err)
	}
	w.ends[lane] += int64(n)
	return nil
}

// order is what a message says.
func order(lane int, offset int64) []byte {
	return fmt.Appendf(nil, `{"order":"%d-%d","amount":1999,"currency":"EUR","state":"paid"}`, lane, offset)
}

// produce writes perSecond messages a second, evenly, until ctx ends, and tells wrote where the partitions end.
func (w *world) produce(ctx context.Context, perSecond float64, wrote func(ends [demoLanes]int64)) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	start, sent := time.Now(), 0
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			due := int(now.Sub(start).Seconds() * perSecond)
			if err := w.write(ctx, tick%demoLanes, due-sent); err != nil && ctx.Err() == nil {
				return err
			}
			sent = due
			wrote(w.ends)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
