package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/ledger/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// A world is what the demo runs on: a store of policies, a ledger of permits, a broker and a topic with a backlog.
type world struct {
	cluster  string
	storeURL string
	store    configstore.Store // the administrator's
	brokers  []string
	client   *kafka.Client
	topic    string // Kafka's
	full     policy.Topic
	sharing  string                           // empty: the default
	ends     [demoPartitions]int64            // offsets behind the last messages written; only the writer changes them
	starts   map[string][demoPartitions]int64 // where groups begin

	openLedger func() (dispatch.Ledger, error) // as a process does
	closers    []func() error                  // in the order in which things were opened
}

// openWorld opens a world with so many messages in its topic; a group in begin has only so many of them left to read.
// The world is to be closed even if there is an error.
func (d *demo) openWorld(ctx context.Context, messages int, begin map[string]int) (w *world, err error) {
	w = &world{cluster: d.app.cluster, storeURL: d.store, topic: "demo-orders", sharing: d.sharing, starts: map[string][demoPartitions]int64{}}
	if d.store != "" || d.ledger != "" || d.kafka != "" {
		w.topic += "-" + strings.ToLower(rand.Text()[:8])
	}
	if w.full, err = policy.ParseTopic("kafka://public/default/" + w.topic); err != nil {
		return w, err
	}
	if err := w.openStore(ctx); err != nil {
		return w, err
	}
	w.onClose(w.removePolicy)
	if url := w.ledgerURL(d.ledger); url == inMemory {
		shared := memory.New()
		w.openLedger = func() (dispatch.Ledger, error) { return shared, nil }
	} else {
		w.openLedger = func() (dispatch.Ledger, error) { return throttle.OpenLedger(url) }
	}
	if err := w.checkLedger(ctx); err != nil {
		return w, err
	}
	if w.brokers = []string{d.kafka}; d.kafka == "" {
		broker, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return w, fmt.Errorf("start a broker: %w", err)
		}
		w.onClose(func() error { broker.Close(); return nil })
		w.brokers = broker.ListenAddrs()
	}
	transport := &kafka.Transport{MetadataTTL: time.Second}
	w.client = &kafka.Client{Addr: kafka.TCP(w.brokers...), Transport: transport}
	w.onClose(func() error { transport.CloseIdleConnections(); return nil })
	if err := w.createTopic(ctx); err != nil {
		return w, err
	}
	if err := w.fill(ctx, messages); err != nil {
		return w, err
	}
	for group, left := range begin {
		if err := w.begin(ctx, group, left); err != nil {
			return w, err
		}
	}
	return w, nil
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
	if w.storeURL == "" {
		dir, err := os.MkdirTemp("", "throttle-demo-")
		if err != nil {
			return err
		}
		w.onClose(func() error { return os.RemoveAll(dir) })
		etcd, err := startEtcd(ctx, dir, "127.0.0.1:0", false)
		if err != nil {
			return err
		}
		w.onClose(func() error { etcd.Close(); return nil })
		w.storeURL = etcdURL(etcd)
	}
	if w.store, err = throttle.OpenStore(ctx, w.storeURL); err != nil {
		return misuse(err)
	}
	w.onClose(w.store.Close)
	return w.admin(io.Discard).withStore(ctx, func(ctx context.Context, store configstore.Store) error { // is it there?
		_, err := store.List(ctx)
		return err
	})
}

// ledgerURL is where the permits are: where they are to be, or in the etcd that has the policies, or else here.
func (w *world) ledgerURL(wanted string) string {
	switch {
	case wanted != "":
		return wanted
	case strings.HasPrefix(w.storeURL, "etcd:"):
		return w.storeURL
	}
	return inMemory
}

// admin returns the app of a command on the world's store.
func (w *world) admin(stdout io.Writer) *app {
	return &app{stdout: stdout, stderr: io.Discard, store: w.storeURL, cluster: w.cluster, output: "json"}
}

// checkLedger asks the ledger for something once: a Limiter would go on without it, and there would be nothing to see.
func (w *world) checkLedger(ctx context.Context) error {
	ledger, err := w.openLedger()
	if err != nil {
		return misuse(err)
	}
	if _, err := ledger.Published(ctx, w.cluster); err != nil {
		err = &hintError{fmt.Errorf("the ledger: %w", err), "check --ledger, and whether it is up"}
		return errors.Join(err, ledger.Close())
	}
	return ledger.Close()
}

// openLimiter opens a Limiter as a process would.
func (w *world) openLimiter(ctx context.Context, replica, group string) (*dispatch.Limiter, error) {
	store, err := throttle.OpenStore(ctx, w.storeURL)
	if err != nil {
		return nil, err
	}
	ledger, err := w.openLedger()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	end := func() error { return errors.Join(store.Close(), ledger.Close()) }
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: configstore.Source(store), Ledger: ledger, Cluster: w.cluster, Group: group, Replica: replica, OnClose: end,
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return lim, nil
}

// setRate calls set-msg-rate, or set for a way of sharing, and returns the revision at which that is in force.
func (w *world) setRate(ctx context.Context, rate policy.Rate) (int64, error) {
	var out bytes.Buffer
	cmd, args := newSetMsgRateCommand(w.admin(&out)), []string{w.full.String(), rate.String()}
	if w.sharing != "" {
		cmd, args = newSetCommand(w.admin(&out)), []string{w.full.String(), "messageRate=" + rate.String(), "sharing=" + w.sharing}
		if policy.Sharing(w.sharing) == policy.Divide {
			args = append(args, "groups="+strings.Join(demoWorkers[:], ","))
		}
	}
	cmd.SetContext(ctx)
	if err := cmd.RunE(cmd, args); err != nil {
		return 0, err
	}
	var done changeReport
	err := json.Unmarshal(out.Bytes(), &done)
	return done.Revision, err
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

func (w *world) createTopic(ctx context.Context) error {
	created, err := w.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: w.topic, NumPartitions: demoPartitions, ReplicationFactor: 1},
	}})
	if err == nil {
		err = created.Errors[w.topic]
	}
	if err != nil {
		return fmt.Errorf("create topic %s on %s: %w", w.topic, w.brokers[0], err)
	}
	w.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		deleted, err := w.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{w.topic}})
		if err == nil {
			err = deleted.Errors[w.topic]
		}
		if err != nil {
			return fmt.Errorf("the demo's topic %s is still there: %w", w.topic, err)
		}
		return nil
	})
	return nil
}

// write appends n messages to a partition.
func (w *world) write(ctx context.Context, partition, n int) error {
	for n > 0 {
		batch := min(n, 5000)
		records := make([]kafka.Record, batch)
		for i := range records {
			records[i].Value = kafka.NewBytes(fmt.Appendf(nil, `{"order":"%d-%d","amount":1999,"currency":"EUR","state":"paid"}`, partition, w.ends[partition]+int64(i)))
		}
		produced, err := w.client.Produce(ctx, &kafka.ProduceRequest{
			Topic: w.topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = produced.Error
		}
		if w.ends[partition] == 0 && (errors.Is(err, kafka.NotLeaderForPartition) || errors.Is(err, kafka.UnknownTopicOrPartition)) {
			if sleep(ctx, 20*time.Millisecond) == nil {
				continue // the topic is new
			}
		}
		if err != nil {
			return fmt.Errorf("write to %s: %w", w.topic, err)
		}
		w.ends[partition] += int64(batch)
		n -= batch
	}
	return nil
}

// fill writes messages to all partitions.
func (w *world) fill(ctx context.Context, messages int) error {
	var writers sync.WaitGroup
	var errs [demoPartitions]error
	for p := range demoPartitions {
		writers.Go(func() { errs[p] = w.write(ctx, p, messages/demoPartitions) })
	}
	writers.Wait()
	return errors.Join(errs[:]...)
}

// begin has a group begin where it has so many messages left.
func (w *world) begin(ctx context.Context, group string, left int) error {
	var offsets []kafka.OffsetCommit
	var starts [demoPartitions]int64
	for p, end := range w.ends {
		starts[p] = max(0, end-int64(left/demoPartitions))
		offsets = append(offsets, kafka.OffsetCommit{Partition: p, Offset: starts[p]})
	}
	w.starts[group] = starts
	for {
		committed, err := w.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: w.groupID(group), GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{w.topic: offsets},
		})
		if err == nil {
			for _, p := range committed.Topics[w.topic] {
				err = errors.Join(err, p.Error)
			}
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, kafka.GroupCoordinatorNotAvailable) && !errors.Is(err, kafka.NotCoordinatorForGroup) || sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("commit for group %s: %w", group, err)
		}
	}
}

// groupID is Kafka's name of a group, which is the demo's own.
func (w *world) groupID(group string) string { return w.topic + "-" + group }

// produce writes perSecond messages a second, evenly, until ctx ends, and tells wrote where the partitions end.
func (w *world) produce(ctx context.Context, perSecond float64, wrote func(ends [demoPartitions]int64)) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	start, sent := time.Now(), 0
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			due := int(now.Sub(start).Seconds() * perSecond)
			if err := w.write(ctx, tick%demoPartitions, due-sent); err != nil && ctx.Err() == nil {
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
