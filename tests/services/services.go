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
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var notInNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Name returns a unique name of letters, digits and dashes: for a cluster, a namespace, a topic or
// a key prefix.
func Name(t testing.TB) string {
	t.Helper()
	test := strings.Trim(notInNames.ReplaceAllString(t.Name(), "-"), "-")
	return fmt.Sprintf("%.40s-%08x", test, rand.Uint32())
}

// freePort returns a loopback port without a listener. It is below the ports that the system gives
// to outgoing connections, so that a stopped service can listen on it again.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		_ = l.Close() // no connection was accepted
		return port
	}
	t.Fatal("services: no free loopback port")
	return 0
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// waitFor calls ready until it returns nil, and returns its last error after timeout.
func waitFor(timeout time.Duration, ready func() error) error {
	end := time.Now().Add(timeout)
	for {
		err := ready()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
