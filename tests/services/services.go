// Package services starts the real services that tests run against: Redis, etcd, Kafka and Pulsar,
// and a TCP proxy that breaks connections. If the environment variable of a service is set, for
// docker compose or a cluster, tests use that service; otherwise it is started on a free loopback
// port and stopped at the end of the test.
//
//	THROTTLE_TEST_REDIS=redis://127.0.0.1:6379
//	THROTTLE_TEST_ETCD=127.0.0.1:2379
//	THROTTLE_TEST_KAFKA=127.0.0.1:9092
//	THROTTLE_TEST_PULSAR=pulsar://127.0.0.1:6650,http://127.0.0.1:8080
//
// A missing service fails the test; no test is skipped for it. A service from the environment may
// hold the data of other tests, so that all data in it needs a [Name] of the test's own.
package services

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The environment variables of services that run elsewhere.
const (
	redisEnv  = "THROTTLE_TEST_REDIS"
	etcdEnv   = "THROTTLE_TEST_ETCD"
	kafkaEnv  = "THROTTLE_TEST_KAFKA"
	pulsarEnv = "THROTTLE_TEST_PULSAR"
)

var notInNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Name returns a unique name of letters, digits and dashes: for a cluster, a namespace, a topic or
// a key prefix.
func Name(t testing.TB) string {
	t.Helper()
	test := strings.Trim(notInNames.ReplaceAllString(t.Name(), "-"), "-")
	return fmt.Sprintf("%.40s-%08x", test, rand.Uint32())
}

// host is the address that services listen on.
var host = "127.0.0.1"

// ListenOn makes services listen on another address of this machine, for clients in network
// namespaces of their own. It applies to those that start until the function that it returns is
// called, and to a restart of those.
func ListenOn(addr string) (restore func()) {
	before := host
	host = addr
	return func() { host = before }
}

// freePort is claimPort for a test; the port is released when it ends.
func freePort(t testing.TB) int {
	t.Helper()
	port, release, err := claimPort()
	if err != nil {
		t.Fatalf("services: %v", err)
	}
	t.Cleanup(release) // when the service has ended
	return port
}

// claimPorts is claimPort for two.
func claimPorts() (ports [2]int, release func(), err error) {
	var releases [2]func()
	for i := range ports {
		if ports[i], releases[i], err = claimPort(); err != nil {
			return ports, nil, err
		}
	}
	return ports, func() { releases[0](); releases[1]() }, nil
}

// claimPort returns a port of host without a listener, which no other test on this machine gets
// until it is released: a stopped service can listen on it again. It is below the ports that the
// system gives to outgoing connections.
func claimPort() (port int, release func(), err error) {
	for range 100 { // the file is locked while the port is in use
		port := 10_000 + rand.IntN(20_000)
		name := filepath.Join(os.TempDir(), fmt.Sprint("throttle-test-port-", port))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, nil, fmt.Errorf("claim a port: %w", err)
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// It does not listen itself: a process that is being started would inherit that for a moment.
			conn, err := net.DialTimeout("tcp", hostPort(port), time.Second)
			if err == nil {
				_ = conn.Close() // nothing was sent
			} else if errors.Is(err, syscall.ECONNREFUSED) {
				return port, func() { _ = os.Remove(name); _ = f.Close() }, nil
			}
		}
		_ = f.Close()
	}
	return 0, nil, errors.New("no free port")
}

func hostPort(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// patience is how long a service may take to start, however busy the machine is.
const patience = 2 * time.Minute

// waitFor calls ready until it returns nil, and returns its last error after patience.
func waitFor(ready func() error) error {
	end := time.Now().Add(patience)
	for {
		err := ready()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Share returns the environment variables of a Kafka and a Pulsar for test processes that this
// process starts; see [Kafka] and [Pulsar]. It starts those that the environment does not have;
// they end with this process.
func Share() (env []string, err error) {
	var starting sync.WaitGroup
	var kafkaErr, pulsarErr error
	kafka, pulsar := os.Getenv(kafkaEnv), os.Getenv(pulsarEnv)
	if kafka == "" {
		starting.Go(func() { kafka, kafkaErr = startKafkaOnce() })
	}
	if pulsar == "" {
		starting.Go(func() {
			var broker *PulsarBroker
			if broker, pulsarErr = startPulsarOnce(); pulsarErr == nil {
				pulsar = broker.URL + "," + broker.Web
			}
		})
	}
	starting.Wait()
	return []string{kafkaEnv + "=" + kafka, pulsarEnv + "=" + pulsar}, errors.Join(kafkaErr, pulsarErr)
}
