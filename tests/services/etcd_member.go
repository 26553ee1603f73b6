package services

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// An etcdMember is an etcd server outside the test process: its requests do not take the time of
// the race detector. Its data outlive it.
type etcdMember struct {
	name, endpoint string
	tls            Certificates // none: no TLS
	dir            string       // of the data
	args           []string
	p              *process // nil while stopped
}

// join adds the addresses of the member and of its cluster, "name=URL,…", to the arguments: others
// reach it at public, and it listens on peer.
func (m *etcdMember) join(peer, public, cluster string) {
	client := "http://" + m.endpoint
	if m.tls.CA != "" {
		client = "https://" + m.endpoint
	}
	m.args = append(m.args, "--name", m.name, "--initial-cluster", cluster,
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", public,
		"--unsafe-no-fsync", // the data need not survive a power failure
		"--bcrypt-cost", "4", "--log-level", "error")
}

// start starts the member, with its data, and returns when it is ready.
func (m *etcdMember) start() error {
	binary, err := cached("etcd", "", etcdEnv)
	if err != nil {
		return err
	}
	config, err := m.tls.client()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return err
	}
	m.p, err = startProcess(dir, binary, append(m.args, "--data-dir", m.dir)...)
	if err != nil {
		return err
	}
	client := http.Client{
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		Timeout:   time.Second,
	}
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	err = waitFor(func() error {
		answer, err := client.Get(scheme + "://" + m.endpoint + "/readyz")
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("/readyz: %s", answer.Status)
		}
		if answer != nil {
			_ = answer.Body.Close() // its status is all that counts
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("not ready: %w\n%s", err, m.p.log())
	}
	return nil
}

// end ends the member with a signal, and keeps its data. It does nothing while it is stopped.
func (m *etcdMember) end(sig syscall.Signal) error {
	if m.p == nil {
		return nil
	}
	p := m.p
	m.p = nil
	return p.end(sig)
}

// client returns what a client needs, nil without certificates.
func (c Certificates) client() (*tls.Config, error) {
	if c.CA == "" {
		return nil, nil
	}
	return transport.TLSInfo{TrustedCAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key}.ClientConfig()
}
