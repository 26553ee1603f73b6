package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// A world has the services of the demo: a policy store, a permit store, and a broker with a topic.
type world struct {
	cluster     string
	policiesURL string
	store       configstore.Store // for changes of the limit
	broker      broker
	topic       string // the broker's name of it
	full        policy.Topic
	sharing     string                  // "" means the default
	ends        [lanes]int64            // the offset after the last message written, by lane
	starts      map[string][lanes]int64 // the offset that a group starts at, by lane

	openPermits func() (dispatch.PermitStore, error)
	closers     []func() error // in the order in which things were opened
}

// A broker has the demo's topic. A message has a lane and an offset in it; with Kafka, a lane is a
// partition.
type broker interface {
	// write appends n messages to a lane; from is the offset of the first.
	write(ctx context.Context, lane int, from int64, n int) error
	// begin makes a group start after the messages that are written.
	begin(ctx context.Context, group string, ends [lanes]int64) error
	// consumer opens a consumer of a group; number counts the group's consumers, from 1.
	consumer(group string, number int, lim *dispatch.Limiter) (consumer, error)
	// Close removes what the demo has created.
	Close() error
}

// A consumer receives messages of a group and acknowledges them.
type consumer interface {
	next(ctx context.Context) (lane int, offset int64, err error)
	Close() error
}

// openWorld opens a world with a number of messages in its topic; begin has the groups that start
// with a smaller backlog. The caller closes the world, also after an error.
func (d *demo) openWorld(
	ctx context.Context, messages int, begin map[string]int,
) (w *world, err error) {
	w = &world{
		cluster: d.app.Cluster, policiesURL: d.policies, topic: "demo-orders", sharing: d.sharing,
		starts: map[string][lanes]int64{},
	}
	if d.policies != "" || d.permits != "" || d.kafka != "" || d.pulsar != "" {
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
		w.broker, err = openKafka(ctx, d.kafka, w.topic, d.clients)
	}
	if err != nil {
		return w, err
	}
	w.onClose(w.broker.Close)
	return w, w.fill(ctx, messages, begin)
}

func (w *world) onClose(f func() error) { w.closers = append(w.closers, f) }

// Close stops what the world has started and removes what it has created, in reverse order.
func (w *world) Close() error {
	var errs []error
	for _, end := range slices.Backward(w.closers) {
		errs = append(errs, end())
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
	admin := &cli.App{PoliciesURL: w.policiesURL, Stderr: io.Discard}
	_, err = admin.Policies(ctx) // fails at once if the policy store is unavailable
	return err
}

// permitsURL returns the URL of the permit store: the wanted one, the etcd with the policies, or
// memory.
func (w *world) permitsURL(wanted string) string {
	switch {
	case wanted != "":
		return wanted
	case strings.HasPrefix(w.policiesURL, "etcd:"):
		return w.policiesURL
	}
	return inMemory
}

// checkPermits returns an error if the permit store is unavailable: a Limiter would run without
// it.
func (w *world) checkPermits(ctx context.Context) error {
	permits, err := w.openPermits()
	if err != nil {
		return cli.Usage(err)
	}
	if _, err := permits.Published(ctx, w.cluster); err != nil {
		err = cli.Hint(fmt.Errorf("permit store: %w", err), "check --permits, and whether it is up")
		return errors.Join(err, permits.Close())
	}
	return permits.Close()
}

// openLimiter opens the Limiter of a replica in a worker group.
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
		Policies: configstore.Source(store), Permits: permits, Cluster: w.cluster, Group: group,
		Replica: replica, OnClose: end,
		Logger: slog.New(slog.DiscardHandler), // the screen is the demo's
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return lim, nil
}

// setRate sets the topic's limit and its sharing mode. It returns the revision of the policies.
func (w *world) setRate(ctx context.Context, rate policy.Rate) (int64, error) {
	p := policy.Policy{
		MessageRate: rate, Sharing: policy.Sharing{Mode: policy.SharingMode(w.sharing)},
	}
	if p.Sharing.Mode == policy.Groups {
		p.Sharing.Groups = workerGroups[:]
	}
	ctx, cancel := context.WithTimeout(ctx, cli.StoreTimeout)
	defer cancel()
	set := func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.TopicScope(w.full), p), nil
	}
	return configstore.Edit(ctx, w.store, configstore.By{Author: "demo", Reason: "throttle-admin demo"}, set)
}

// cleanUp bounds the time to remove what the demo has created in real services.
const cleanUp = 5 * time.Second

func (w *world) removePolicy() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	remove := func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Remove(policy.PolicySection, policy.TopicScope(w.full)), nil
	}
	if _, err := configstore.Edit(ctx, w.store, configstore.By{Author: "demo", Reason: "throttle-admin demo"}, remove); err != nil {
		return fmt.Errorf("the demo's policy was not removed; run throttle-admin remove %s: %w",
			w.full, err)
	}
	return nil
}

// fill writes the messages; groups with a smaller backlog start after some of them.
func (w *world) fill(ctx context.Context, messages int, begin map[string]int) error {
	groups := slices.Clone(groupNames)
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

// writeUpTo writes to all lanes until the topic has a number of messages.
func (w *world) writeUpTo(ctx context.Context, messages int) error {
	var writers sync.WaitGroup
	var errs [lanes]error
	for lane := range lanes {
		writers.Go(func() {
			errs[lane] = w.write(ctx, lane, messages/lanes-int(w.ends[lane]))
		})
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

// order returns the body of a message.
func order(lane int, offset int64) []byte {
	const text = `{"order":"%d-%d","amount":1999,"currency":"EUR","state":"paid"}`
	return fmt.Appendf(nil, text, lane, offset)
}

// produce writes perSecond messages a second, evenly, until ctx ends. It calls wrote with the ends
// of the lanes.
func (w *world) produce(
	ctx context.Context, perSecond float64, wrote func(ends [lanes]int64),
) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	start, sent := time.Now(), 0
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			due := int(now.Sub(start).Seconds() * perSecond)
			if err := w.write(ctx, tick%lanes, due-sent); err != nil && ctx.Err() == nil {
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
