package services

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Certificates are the PEM files of an authority and of a certificate that it issued: for a server
// at 127.0.0.1, or for a client.
type Certificates struct {
	CA, Cert, Key string // file names
}

// TLS makes an authority for one test, and returns the certificates of a server and of a client.
func TLS(t testing.TB) (server, client Certificates) {
	t.Helper()
	dir := t.TempDir()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "throttle test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := newKey(t)
	caFile := filepath.Join(dir, "ca.pem")
	issue(t, caFile, ca, ca, caKey, caKey)
	for i, c := range []*Certificates{&server, &client} {
		name := []string{"server", "client"}[i]
		key := newKey(t)
		*c = Certificates{
			CA: caFile, Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key"),
		}
		issue(t, c.Cert, &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)), Subject: pkix.Name{CommonName: name},
			NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			// The server's is also for a client: etcd connects to itself.
			ExtKeyUsage: []x509.ExtKeyUsage{
				x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth,
			}[:2-i],
		}, ca, key, caKey)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, c.Key, "PRIVATE KEY", der)
	}
	return server, client
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue writes a certificate for key, signed with the authority's key.
func issue(t testing.TB, file string, cert, ca *x509.Certificate, key, caKey *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, file, "CERTIFICATE", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// RedisTLS starts a redis-server whose URL is rediss://host:port; clients there need a certificate
// of the same authority. Addr is another port, without TLS.
func RedisTLS(t testing.TB, server Certificates, args ...string) *RedisProcess {
	t.Helper()
	port := freePort(t)
	r := RedisServer(t, append(args, "--tls-port", strconv.Itoa(port),
		"--tls-ca-cert-file", server.CA, "--tls-cert-file", server.Cert,
		"--tls-key-file", server.Key)...)
	r.URL = "rediss://" + hostPort(port)
	return r
}
