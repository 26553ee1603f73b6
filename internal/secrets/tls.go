package secrets

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
)

// A TLS names the files of a TLS configuration. Any number of goroutines may use it at once.
type TLS struct {
	CA         string // PEM file of the authorities of the other side; "": the system's
	Cert, Key  string // PEM files of this side's certificate and its key; "": none
	ServerName string // that the server's certificate must have; "": the host that is dialed
	Names      string // what errors call the fields, with %s for ca, cert and key

	mu   sync.Mutex
	last *tls.Config // the last that the files held
}

// Config returns a client's configuration with what the files hold now. If they hold none, because
// they are being replaced, it returns the last one that they held.
func (t *TLS) Config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	return t.keep(cfg, t.read(&cfg.RootCAs, &cfg.Certificates))
}

// Listener returns a server's configuration, which reads the files again for each connection. With
// a CA, clients need a certificate of its.
func (t *TLS) Listener() (*tls.Config, error) {
	current := func() (*tls.Config, error) {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		if t.CA != "" {
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return t.keep(cfg, t.read(&cfg.ClientCAs, &cfg.Certificates))
	}
	cfg, err := current()
	if err != nil {
		return nil, err
	}
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current() }
	return cfg, nil
}

// keep returns cfg, or the last one if there is an error.
func (t *TLS) keep(cfg *tls.Config, err error) (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.last = cfg
	case t.last == nil:
		return nil, err
	}
	return t.last, nil
}

// read sets the authorities and the certificate.
func (t *TLS) read(authorities **x509.CertPool, certificates *[]tls.Certificate) error {
	named := func(field string) string { return fmt.Sprintf(t.Names, field) }
	if (t.Cert == "") != (t.Key == "") {
		return fmt.Errorf("%s and %s: one is missing: want both files, or neither",
			named("cert"), named("key"))
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return fmt.Errorf("%s: %w", named("ca"), err)
		}
		if *authorities = x509.NewCertPool(); !(*authorities).AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: %s: %w", named("ca"), t.CA, errors.New("no PEM certificate in it"))
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return fmt.Errorf("%s and %s: %w", named("cert"), named("key"), err)
		}
		*certificates = []tls.Certificate{pair}
	}
	return nil
}
