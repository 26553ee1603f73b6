package hour

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/tests/chaos/hour/journal"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const (
	kafkaTopic  = "orders"
	pulsarTopic = "persistent://public/default/orders"
	partitions  = 8
	produced    = 250 // messages a second for each topic
	bareRate    = 240 // messages a second for each group of bare clients
)

// A limit is the limit of a scope, as the hour changes it.
type limit struct {
	name, scope, settings string
	share                 bool // onOutage: share, with other bounds during outages
	groups                []int
	rates                 []journal.Rate
}

// The groups of consumers.
const (
	kafkaThrottled = iota
	pulsarThrottled
	kafkaBare
	pulsarBare
	groups
)

var groupNames = [groups]string{"kafka", "pulsar", "kafka-bare", "pulsar-bare"}

// A scene is everything that runs. Methods that lanes and producers call report errors, and do not
// end the test, which only its own goroutine may do.
type scene struct {
	t        *testing.T
	dir      string
	net      *network
	kafka    *services.KafkaProcess
	pulsar   *services.PulsarProcess
	shards   *services.RedisShards
	clocks   [3]*services.Clock
	etcd     *services.EtcdTrio
	policies string    // URL
	admin    string    // program
	builds   [2]string // of the consumer
	workers  [groups][Consumers / 2]*worker
	limits   []*limit

	mu      sync.Mutex // guards the fields below
	rewinds [groups][]journal.Rewind
	outages []journal.Interval // of the permit store, for some consumers or all
	done    map[Kind]int
}

func newScene(t *testing.T, net *network) *scene {
	dir := os.Getenv("THROTTLE_CHAOS_DIR") // keeps the journals
	if dir == "" {
		dir = t.TempDir()
	}
	s := &scene{t: t, dir: dir, net: net, done: map[Kind]int{}}
	s.build()
	listen := func(host int) func() { return services.ListenOn(net.address(host)) }
	restore := listen(brokers)
	s.kafka, s.pulsar = services.StartKafka(t), services.StartPulsar(t)
	restore()
	restore = listen(permits)
	s.shards = services.RedisClusterOf(t, func(i int, args ...string) *services.RedisProcess {
		s.clocks[i] = services.NewClock(t)
		return services.RedisServerWithClock(t, s.clocks[i], append(args, "--dir", t.TempDir(), "--appendonly", "yes")...)
	})
	restore()
	restore = listen(policies)
	s.etcd = services.EtcdCluster(t)
	restore()
	s.policies = "etcd://" + strings.Join(s.etcd.Endpoints[:], ",") + "/throttle"
	s.kafka.CreateTopic(kafkaTopic, partitions)
	s.createPulsarTopic()
	s.limits = []*limit{
		{name: "both topics", scope: "public/default", settings: "aggregate=true onOutage=share", share: true,
			groups: []int{kafkaThrottled, pulsarThrottled}},
		{name: "the Kafka topic", scope: "kafka://public/default/" + kafkaTopic,
			settings: "onOutage=share caughtUp.throttle=true", share: true, groups: []int{kafkaThrottled}},
		{name: "the Pulsar topic", scope: pulsarTopic,
			settings: "onOutage=stop caughtUp.throttle=true", groups: []int{pulsarThrottled}},
	}
	for i, rate := range []int{450, 300, 300} {
		require.NoError(t, s.limit(s.limits[i], rate))
	}
	for g := range groups {
		for i := range s.workers[g] {
			s.workers[g][i] = s.worker(g, i)
			s.workers[g][i].start()
		}
	}
	t.Cleanup(func() {
		for g := range groups {
			for _, w := range s.workers[g] {
				w.kill()
			}
		}
	})
	return s
}

// build builds the consumer twice, and throttle-admin. The builds of the consumer differ by their
// label alone.
func (s *scene) build() {
	goBuild := func(name, pkg string, flags ...string) string {
		out := filepath.Join(s.dir, name)
		args := append([]string{"build", "-o", out}, flags...)
		text, err := exec.Command("go", append(args, pkg)...).CombinedOutput()
		require.NoError(s.t, err, "%s", text)
		return out
	}
	for i, label := range []string{"one", "two"} {
		s.builds[i] = goBuild("consumer-"+label, "./consumer", "-ldflags", "-X main.build="+label)
	}
	s.admin = goBuild("throttle-admin", "../../../cmd/throttle-admin")
}

func (s *scene) createPulsarTopic() {
	admin, err := s.pulsarAdmin()
	require.NoError(s.t, err)
	name, err := utils.GetTopicName(pulsarTopic)
	require.NoError(s.t, err)
	require.NoError(s.t, admin.Topics().Create(*name, partitions))
	for _, g := range []int{pulsarThrottled, pulsarBare} {
		require.NoError(s.t, admin.Subscriptions().Create(*name, groupNames[g], utils.Earliest))
	}
}

func (s *scene) pulsarAdmin() (pulsaradmin.Client, error) {
	return pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: s.pulsar.Web})
}

// worker returns a group's i-th worker.
func (s *scene) worker(group, i int) *worker {
	w := &worker{
		t: s.t, program: s.builds[0],
		journal: filepath.Join(s.dir, fmt.Sprint(groupNames[group], "-", i, ".journal")),
	}
	w.args = []string{"-group", groupNames[group], "-cache", w.journal + ".cache"}
	consumer := i
	if group == kafkaThrottled || group == kafkaBare {
		w.args = append(w.args, "-broker", "kafka", "-url", s.kafka.Brokers[0], "-topic", kafkaTopic)
	} else {
		w.args = append(w.args, "-broker", "pulsar", "-url", s.pulsar.URL, "-topic", pulsarTopic)
		consumer += Consumers / 2
	}
	if group == kafkaThrottled || group == pulsarThrottled {
		w.env = []string{
			throttle.EnvPolicies + "=" + s.policies, throttle.EnvPermits + "=" + s.shards.URL,
			throttle.EnvCluster + "=chaos",
		}
	} else {
		w.args = append(w.args, "-pace", fmt.Sprint(time.Second*Consumers/2/bareRate))
	}
	w.namespace = s.net.namespace(consumer)
	return w
}

// twins returns a consumer of the plan: the throttled worker and the one with the bare client.
func (s *scene) twins(consumer int) []*worker {
	if consumer < Consumers/2 {
		return []*worker{s.workers[kafkaThrottled][consumer], s.workers[kafkaBare][consumer]}
	}
	consumer -= Consumers / 2
	return []*worker{s.workers[pulsarThrottled][consumer], s.workers[pulsarBare][consumer]}
}

// limit sets a limit with throttle-admin.
func (s *scene) limit(l *limit, rate int) error {
	from := time.Now()
	args := append([]string{
		"set", l.scope, fmt.Sprint("messageRate=", rate), "--policies", s.policies, "--cluster", "chaos",
	}, strings.Fields(l.settings)...)
	err := s.retry(func() error {
		out, err := exec.Command(s.admin, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("throttle-admin %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(l.rates); n > 0 {
		l.rates[n-1].To = time.Now().Add(inForce).UnixNano()
	}
	l.rates = append(l.rates, journal.Rate{
		Interval: journal.Interval{From: from.UnixNano(), To: math.MaxInt64}, PerSecond: rate,
	})
	return err
}

// inForce is how long after a change the old limit may be in force.
const inForce = time.Second

// retry calls f until it succeeds, for a minute.
func (s *scene) retry(f func() error) (err error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if err = f(); err == nil || time.Now().After(end) || s.t.Context().Err() != nil {
			return err
		}
	}
}

// sessions reads the journals of a group.
func (s *scene) sessions(group int) (all []journal.Session) {
	for _, w := range s.workers[group] {
		read, err := journal.Read(w.journal)
		assert.NoError(s.t, err)
		all = append(all, read...)
	}
	return all
}

// rewind notes a rewind of a group.
func (s *scene) rewind(group int, r journal.Rewind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rewinds[group] = append(s.rewinds[group], r)
}

// produce produces until ctx ends, and records what a broker has acknowledged.
func (s *scene) produce(ctx context.Context, topic string, send func(ctx context.Context, ids []string) error) {
	f, err := os.Create(s.producedFile(topic))
	if !assert.NoError(s.t, err) {
		return
	}
	defer f.Close()
	const batch, tick = produced / 10, 100 * time.Millisecond
	for next, n := time.Now(), 0; ctx.Err() == nil; n += batch {
		ids := make([]string, batch)
		for i := range ids {
			ids[i] = fmt.Sprint(n + i)
		}
		for {
			err := send(ctx, ids)
			if ctx.Err() != nil {
				return // nobody knows whether the last ones were produced
			} else if err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if _, err := f.WriteString(strings.Join(ids, "\n") + "\n"); !assert.NoError(s.t, err) {
			return
		}
		next = next.Add(tick)
		time.Sleep(time.Until(next))
	}
}

func (s *scene) producedFile(topic string) string { return filepath.Join(s.dir, topic+".produced") }

// ids returns what was produced for a group.
func (s *scene) ids(group int) []string {
	topic := "pulsar"
	if group == kafkaThrottled || group == kafkaBare {
		topic = "kafka"
	}
	text, err := os.ReadFile(s.producedFile(topic))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(s.t, err)
	}
	return strings.Fields(string(text))
}
