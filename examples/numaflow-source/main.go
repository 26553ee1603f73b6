// Command numaflow-source is a source for Numaflow: a Kafka topic, read by a consumer group under a
// shared limit. Dockerfile and monovertex.yaml deploy it. Its environment is
//
//	KAFKA_BROKERS=host:port,host:port KAFKA_TOPIC=orders KAFKA_GROUP=billing
//	THROTTLE_POLICIES=etcd://host:2379 THROTTLE_PERMITS=redis://host:6379
//
// and its limit is that of the vertex:
//
//	throttle-admin set-msg-rate numaflow://NAMESPACE/VERTEX/VERTEX 100
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle"
	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
)

func main() {
	sockets := flag.String("sockets", "/var/run/numaflow", "directory of the data plane's sockets")
	flag.Parse()
	if err := run(context.Background(), *sockets); err != nil {
		slog.Error("numaflow-source failed", "error", err)
		os.Exit(1)
	}
}

// run serves the data plane until SIGTERM.
func run(ctx context.Context, sockets string) (err error) {
	topic, err := topicOfEnv()
	if err != nil {
		return err
	}
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }() // returns allocated permits
	topic.reader = kafka.NewReader(topic.config)
	defer func() { err = errors.Join(err, topic.reader.Close()) }()
	source, err := numaflowthrottle.Source(topic, lim)
	if err != nil {
		return err
	}
	return sourcer.NewServer(source, sourcer.WithSockAddr(sockets+"/source.sock"),
		sourcer.WithServerInfoFilePath(sockets+"/sourcer-server-info")).Start(ctx)
}

func topicOfEnv() (*topic, error) {
	var errs []error
	need := func(name, example string) string {
		value := os.Getenv(name)
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is not set: want %s", name, example))
		}
		return value
	}
	brokers := strings.Split(need("KAFKA_BROKERS", "host:9092,host:9092"), ",")
	t := newTopic(brokers, need("KAFKA_TOPIC", "orders"), need("KAFKA_GROUP", "billing"))
	return t, errors.Join(errs...)
}
