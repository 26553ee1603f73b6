package services

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A PulsarBroker is a Pulsar that several tests share: topics and namespaces need a [Name].
type PulsarBroker struct {
	URL string // pulsar://host:port
	Web string // http://host:port, the admin API's
}

// Pulsar returns the Pulsar at THROTTLE_TEST_PULSAR (pulsar://host:port,http://host:port) or,
// without it, a standalone of this test binary: the first call starts it in some seconds, and it
// ends with the binary.
func Pulsar(t testing.TB) *PulsarBroker {
	t.Helper()
	if urls := os.Getenv(pulsarEnv); urls != "" {
		broker, web, ok := strings.Cut(urls, ",")
		if !ok {
			t.Fatalf("services: THROTTLE_TEST_PULSAR %q: want pulsar://host:port,http://host:port",
				urls)
		}
		return &PulsarBroker{broker, web}
	}
	broker, err := startPulsarOnce()
	if err != nil {
		t.Fatalf("services: start pulsar: %v", err)
	}
	return broker
}

var pulsarOnce struct {
	sync.Mutex
	standalone // held until this process ends
}

// startPulsarOnce returns this process's broker. If a start fails, the next test tries again.
func startPulsarOnce() (*PulsarBroker, error) {
	pulsarOnce.Lock()
	defer pulsarOnce.Unlock()
	if pulsarOnce.process == nil {
		ports, release, err := claimPorts()
		if err != nil {
			return nil, err
		}
		defer release() // it listens by then
		s, err := newStandalone(ports)
		if err == nil {
			err = s.start(s.data) // removed with the process
		}
		if err != nil {
			return nil, err
		}
		pulsarOnce.standalone = s
	}
	return &pulsarOnce.broker, nil
}

// A PulsarProcess is a standalone Pulsar of one test, which the test may stop and start.
type PulsarProcess struct {
	PulsarBroker

	t testing.TB
	s standalone
}

// StartPulsar starts a Pulsar that ends with the test.
func StartPulsar(t testing.TB) *PulsarProcess {
	t.Helper()
	s, err := newStandalone([2]int{freePort(t), freePort(t)})
	if err != nil {
		t.Fatalf("services: start pulsar: %v", err)
	}
	p := &PulsarProcess{s.broker, t, s}
	t.Cleanup(func() { // a running process would write to the data
		p.Kill()
		_ = os.RemoveAll(p.s.data)
	})
	p.Start()
	return p
}

// Start starts a killed Pulsar again, with its data, at the same addresses.
func (p *PulsarProcess) Start() {
	p.t.Helper()
	dir := filepath.Join(p.s.data, "run") // removed with the process; the data stays
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = p.s.start(dir)
	}
	if err != nil {
		p.t.Fatalf("services: start pulsar: %v", err)
	}
}

// Kill ends it with SIGKILL.
func (p *PulsarProcess) Kill() {
	p.t.Helper()
	if p.s.process == nil {
		return
	}
	if err := p.s.process.end(syscall.SIGKILL); err != nil {
		p.t.Errorf("services: kill pulsar: %v", err)
	}
	p.s.process = nil
}

// A standalone is a Pulsar in one Java process: metadata, bookie and broker.
type standalone struct {
	broker  PulsarBroker
	host    string
	data    string // directory
	libs    string
	process *process // nil: not running
}

// newStandalone writes the configuration.
func newStandalone(ports [2]int) (s standalone, err error) {
	if s.libs, err = jars("pulsar", "pulsar-broker-4.0.7.jar", pulsarEnv); err != nil {
		return s, err
	}
	if s.data, err = os.MkdirTemp("", "pulsar-"); err != nil {
		return s, err
	}
	s.host = host
	port, web := ports[0], ports[1]
	s.broker = PulsarBroker{"pulsar://" + hostPort(port), "http://" + hostPort(web)}
	text := fmt.Sprintf(pulsarConfig, port, web, host, host)
	return s, os.WriteFile(filepath.Join(s.data, "standalone.conf"), []byte(text), 0o600)
}

// start runs it in dir, and returns when it is healthy.
func (s *standalone) start(dir string) error {
	args := append(javaOptions(dir), "-Xmx768m", "-XX:MaxDirectMemorySize=512m",
		"-Dio.netty.tryReflectionSetAccessible=true")
	for _, opened := range []string{
		"java.base/sun.net", "java.base/java.lang", "java.base/java.nio",
		"java.base/jdk.internal.misc", "java.base/java.util.zip",
		"java.base/jdk.internal.platform", "java.management/sun.management",
		"jdk.management/com.sun.management.internal",
	} {
		args = append(args, "--add-opens", opened+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", filepath.Join(s.libs, "*"),
		"org.apache.pulsar.PulsarStandaloneStarter", "-a", s.host,
		"-c", filepath.Join(s.data, "standalone.conf"), "-nfw", "-nss",
		"--metadata-dir", filepath.Join(s.data, "metadata"),
		"--bookkeeper-dir", filepath.Join(s.data, "bookkeeper"))
	p, err := startProcess(dir, "java", args...)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 2 * time.Second}
	err = waitFor(func() error {
		// The namespace is created after the broker is healthy.
		for _, path := range []string{
			"/admin/v2/brokers/health", "/admin/v2/namespaces/public/default",
		} {
			resp, err := client.Get(s.broker.Web + path)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", path, resp.Status)
			}
		}
		return nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for its health: %w\n%s", err, p.log()),
			p.end(syscall.SIGKILL))
	}
	s.process = p
	return nil
}

// pulsarConfig is standalone.conf. Unless told otherwise, a bookie refuses writes when 95 % of its
// disk is used, however many gigabytes are left.
const pulsarConfig = `brokerServicePort=%d
webServicePort=%d
bindAddress=%s
advertisedAddress=%s
clusterName=standalone
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
brokerDeleteInactiveTopicsEnabled=false
managedLedgerCacheSizeMB=64
loadBalancerEnabled=false
transactionCoordinatorEnabled=true
journalSyncData=false
diskUsageThreshold=0.999
diskUsageWarnThreshold=0.99
`
