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
	if brokers := os.Getenv("THROTTLE_TEST_KAFKA"); brokers != "" {
		return &KafkaBroker{Brokers: strings.Split(brokers, ","), t: t}
	}
	addr, err := startKafkaOnce(t)
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
	err = waitFor(30*time.Second, func() error {
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
	addr    string
	process *process // held until this process ends
}

// startKafkaOnce returns the address of this process's broker. If a start fails, the next test
// tries again.
func startKafkaOnce(t testing.TB) (addr string, err error) {
	kafkaOnce.Lock()
	defer kafkaOnce.Unlock()
	if kafkaOnce.process != nil {
		return kafkaOnce.addr, nil
	}
	libs, err := jars("kafka", "kafka_2.13-4.1.0.jar", "THROTTLE_TEST_KAFKA")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "kafka-")
	if err != nil {
		return "", err
	}
	broker, controller := loopback(freePort(t)), loopback(freePort(t))
	config := filepath.Join(dir, "server.properties")
	text := fmt.Sprintf(kafkaConfig, controller, broker, controller, broker,
		filepath.Join(dir, "data"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	java := append(javaOptions(dir), "-Xmx512m", "-cp", filepath.Join(libs, "*"))
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	format := append(java[:len(java):len(java)], "kafka.tools.StorageTool", "format", "-t",
		hex.EncodeToString(id), "-c", config)
	if out, err := exec.Command("java", format...).CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("format its storage: %w\n%s", err, out),
			os.RemoveAll(dir))
	}
	p, err := startProcess(dir, "java", append(java, "kafka.Kafka", config)...)
	if err != nil {
		return "", err
	}
	transport := &kafka.Transport{} // the default one would cache metadata without any broker
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(broker), Timeout: time.Second, Transport: transport}
	err = waitFor(60*time.Second, func() error {
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
		return "", errors.Join(fmt.Errorf("wait for its answer: %w\n%s", err, log), p.end(9))
	}
	kafkaOnce.addr, kafkaOnce.process = broker, p
	return broker, nil
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
