// Package services starts the real services that tests run against: Redis, etcd, Kafka, Pulsar, and
// a TCP proxy that breaks connections. Each service is taken from its environment variable if
// that is set (what docker compose or a cluster of one's own gives), else it is started on a
// free loopback port and stopped at the end of the test.
//
//	THROTTLE_TEST_REDIS=redis://127.0.0.1:6379
//	THROTTLE_TEST_ETCD=127.0.0.1:2379
//	THROTTLE_TEST_KAFKA=127.0.0.1:9092
//	THROTTLE_TEST_PULSAR=pulsar://127.0.0.1:6650,http://127.0.0.1:8080
//
// A service that is not there fails the test; nothing is ever skipped. What is taken from the
// environment may hold the data of other tests: use a [Name] of one's own for everything in it.
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

// Name returns a name that nobody else uses, made of letters, digits and dashes: for a cluster,
// a namespace, a topic, a key prefix.
func Name(t testing.TB) string {
	t.Helper()
	test := strings.Trim(notInNames.ReplaceAllString(t.Name(), "-"), "-")
	return fmt.Sprintf("%.40s-%08x", test, rand.Uint32())
}

// freePort returns a loopback port that nobody listens on. It lies below those that the system
// hands to outgoing connections, so that a stopped service gets its port back.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		_ = l.Close() // nothing was accepted
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
