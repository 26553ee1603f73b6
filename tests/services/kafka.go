package services

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// A KafkaBroker is a Kafka that several tests share: topics and consumer groups need a [Name].
type KafkaBroker struct {
	Brokers []string // host:port

	t testing.TB
}

// Kafka returns the Kafka at THROTTLE_TEST_KAFKA (host:port,host:port) or, without it, a broker of
// this test binary: the first call starts it in a few seconds, and it ends with the binary.
func Kafka(t testing.TB) *KafkaBroker {
	t.Helper()
	if brokers := os.Getenv(kafkaEnv); brokers != "" {
		return &KafkaBroker{Brokers: strings.Split(brokers, ","), t: t}
	}
	addr, err := startKafkaOnce()
	if err != nil {
		t.Fatalf("services: start kafka: %v", err)
	}
	return &KafkaBroker{Brokers: []string{addr}, t: t}
}

// CreateTopic creates a topic, and returns when all its partitions have a leader.
func (k *KafkaBroker) CreateTopic(name string, partitions int) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 30*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(k.Brokers...)}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}},
	})
	if err == nil {
		err = created.Errors[name]
	}
	if err != nil {
		k.t.Fatalf("services: create topic %s: %v", name, err)
	}
	err = waitFor(func() error {
		meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
		if err != nil {
			return err
		}
		led := 0
		for _, p := range meta.Topics[0].Partitions {
			if p.Error == nil && p.Leader.Host != "" {
				led++
			}
		}
		if led != partitions {
			return fmt.Errorf("%d of %d partitions have a leader", led, partitions)
		}
		return meta.Topics[0].Error
	})
	if err != nil {
		k.t.Fatalf("services: create topic %s: %v", name, err)
	}
}

var kafkaOnce struct {
	sync.Mutex
	kafkaServer // held until this process ends
}

// startKafkaOnce returns the address of this process's broker. If a start fails, the next test
// tries again.
func startKafkaOnce() (addr string, err error) {
	kafkaOnce.Lock()
	defer kafkaOnce.Unlock()
	if kafkaOnce.process == nil {
		ports, release, err := claimPorts()
		if err != nil {
			return "", err
		}
		defer release() // it listens by then
		s, err := newKafka(ports)
		if err == nil {
			err = s.start(s.data) // removed with the process
		}
		if err != nil {
			return "", err
		}
		kafkaOnce.kafkaServer = s
	}
	return kafkaOnce.addr, nil
}

// A KafkaProcess is a Kafka of one test, which the test may stop and start.
type KafkaProcess struct {
	KafkaBroker

	s kafkaServer
}

// StartKafka starts a Kafka that ends with the test.
func StartKafka(t testing.TB) *KafkaProcess {
	t.Helper()
	s, err := newKafka([2]int{freePort(t), freePort(t)})
	if err != nil {
		t.Fatalf("services: start kafka: %v", err)
	}
	p := &KafkaProcess{KafkaBroker{[]string{s.addr}, t}, s}
	t.Cleanup(func() { // a running process would write to the data
		p.Kill()
		_ = os.RemoveAll(p.s.data)
	})
	p.Start()
	return p
}

// Start starts a killed Kafka again, with its data, at the same address.
func (p *KafkaProcess) Start() {
	p.t.Helper()
	dir := filepath.Join(p.s.data, "run") // removed with the process; the data stays
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = p.s.start(dir)
	}
	if err != nil {
		p.t.Fatalf("services: start kafka: %v", err)
	}
}

// Kill ends it with SIGKILL.
func (p *KafkaProcess) Kill() {
	p.t.Helper()
	if p.s.process == nil {
		return
	}
	if err := p.s.process.end(syscall.SIGKILL); err != nil {
		p.t.Errorf("services: kill kafka: %v", err)
	}
	p.s.process = nil
}

// A kafkaServer is a Kafka in one Java process: controller and broker.
type kafkaServer struct {
	addr    string // host:port
	data    string // directory
	libs    string
	process *process // nil: not running
}

// newKafka writes the configuration and formats the storage.
func newKafka(ports [2]int) (s kafkaServer, err error) {
	if s.libs, err = jars("kafka", "kafka_2.13-4.1.0.jar", kafkaEnv); err != nil {
		return s, err
	}
	if s.data, err = os.MkdirTemp("", "kafka-"); err != nil {
		return s, err
	}
	controller := hostPort(ports[0])
	s.addr = hostPort(ports[1])
	text := fmt.Sprintf(kafkaConfig, controller, s.addr, controller, s.addr,
		filepath.Join(s.data, "data"))
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		return s, errors.Join(err, os.RemoveAll(s.data))
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	format := append(s.java(s.data), "kafka.tools.StorageTool", "format", "-t",
		hex.EncodeToString(id), "-c", s.config())
	if out, err := exec.Command("java", format...).CombinedOutput(); err != nil {
		return s, errors.Join(fmt.Errorf("format its storage: %w\n%s", err, out),
			os.RemoveAll(s.data))
	}
	return s, nil
}

func (s *kafkaServer) config() string { return filepath.Join(s.data, "server.properties") }

func (s *kafkaServer) java(dir string) []string {
	return append(javaOptions(dir), "-Xmx512m", "-cp", filepath.Join(s.libs, "*"))
}

// start runs it in dir, and returns when it has a coordinator of consumer groups.
func (s *kafkaServer) start(dir string) error {
	p, err := startProcess(dir, "java", append(s.java(dir), "kafka.Kafka", s.config())...)
	if err != nil {
		return err
	}
	transport := &kafka.Transport{} // the default one would cache metadata without any broker
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(s.addr), Timeout: time.Second, Transport: transport}
	err = waitFor(func() error {
		// The first request for a coordinator makes the broker create the topic of consumer groups.
		found, err := client.FindCoordinator(context.Background(),
			&kafka.FindCoordinatorRequest{Key: "any", KeyType: kafka.CoordinatorKeyTypeConsumer})
		if err == nil {
			err = found.Error
		}
		return err
	})
	if err != nil {
		log := p.log()
		return errors.Join(fmt.Errorf("wait for its answer: %w\n%s", err, log),
			p.end(syscall.SIGKILL))
	}
	s.process = p
	return nil
}

const kafkaConfig = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%s
listeners=PLAINTEXT://%s,CONTROLLER://%s
advertised.listeners=PLAINTEXT://%s
controller.listener.names=CONTROLLER
log.dirs=%s
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
`
