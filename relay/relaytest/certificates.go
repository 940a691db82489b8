package relaytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/relay"
)

// Certificates connects sinks to servers whose certificates are for another host, have expired, or come from an unknown
// authority. open returns a sink that connects to an address by TLS and trusts the certificates in a file. The sink has
// the secret, which must not reach any server or appear in any error.
func Certificates(t *testing.T, secret string, open func(t *testing.T, address, caFile string) relay.Sink) {
	ca, caKey := certificate(t, nil, nil, "a certificate authority", time.Hour)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		host   string
		valid  time.Duration // from an hour ago on
		signed bool
	}{
		"of another host": {"other.example.com", 2 * time.Hour, true},
		"expired":         {"localhost", time.Minute, true},
		"of nobody known": {"localhost", 2 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			parent, parentKey := ca, caKey
			if !c.signed {
				parent, parentKey = nil, nil
			}
			own, key := certificate(t, parent, parentKey, c.host, c.valid)
			received := make(chan string, 10)
			address := listen(t, tls.Certificate{Certificate: [][]byte{own.Raw}, PrivateKey: key}, received)
			s := open(t, address, caFile)
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := s.Probe(ctx)
			if got := outcome(err); got != "unavailable "+relay.CodeForbidden {
				t.Errorf("Probe: %s (%v)", got, err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error has the secret in it: %v", err)
			}
			for len(received) > 0 {
				if text := <-received; text != "" {
					t.Errorf("the server has got %q", text)
				}
			}
		})
	}
}

// listen accepts connections by TLS, and records what it receives.
func listen(t *testing.T, own tls.Certificate, received chan<- string) (address string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{own},
		MinVersion:   tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				b := make([]byte, 1000)
				n, _ := conn.Read(b)
				select {
				case received <- string(b[:n]):
				default:
				}
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort("localhost", port)
}

// certificate makes a certificate, signed by its parent or by itself.
func certificate(t *testing.T, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, host string,
	valid time.Duration,
) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-time.Hour)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: began, NotAfter: began.Add(valid), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if host == "a certificate authority" {
		template.IsCA, template.DNSNames, template.ExtKeyUsage, template.KeyUsage = true, nil, nil,
			x509.KeyUsageCertSign
		template.NotAfter = time.Now().Add(valid)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}
