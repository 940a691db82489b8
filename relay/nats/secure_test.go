package nats

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
)

// A server is believed that has a certificate for its host, in its time, from an authority that we trust.
func TestCertificates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		host    string
		ends    time.Duration
		trusted bool
		want    string // in the error of Probe
	}{
		"good":               {"127.0.0.1", time.Hour, true, ""},
		"of another host":    {"nats.example.com", time.Hour, true, "x509"},
		"expired":            {"127.0.0.1", -time.Hour, true, "expired"},
		"of another's maker": {"127.0.0.1", time.Hour, false, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ca := certify(t, dir, test.host, test.ends)
			server := natstest.Start(t, natstest.Options{Config: fmt.Sprintf(
				"tls { cert_file: %q, key_file: %q }", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))})
			config := Config{URLs: []string{strings.Replace(server.URL, "nats:", "tls:", 1)}}
			if test.trusted {
				config.CAFile = ca
			}
			err := connectedSink(t, config).Probe(t.Context())
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			unavailable, ok := errors.AsType[*relay.UnavailableError](err)
			if !ok || unavailable.Code != relay.CodeForbidden || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want an outage that says %q", err, test.want)
			}
		})
	}
}

// certify writes a certificate and its key, and returns the file of the authority that signed it.
func certify(t *testing.T, dir, host string, ends time.Duration) (authority string) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sign := func(template, parent *x509.Certificate, of, by *ecdsa.PrivateKey) []byte {
		template.NotBefore, template.SerialNumber = time.Now().Add(-24*time.Hour), big.NewInt(1)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &of.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rootKey, leafKey := key(), key()
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotAfter: time.Now().Add(24 * time.Hour),
	}
	authority = write("ca.pem", "CERTIFICATE", sign(root, root, rootKey, rootKey))
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: host}, NotAfter: time.Now().Add(ends)}
	if host == "127.0.0.1" {
		leaf.IPAddresses = append(leaf.IPAddresses, []byte{127, 0, 0, 1})
	} else {
		leaf.DNSNames = []string{host}
	}
	write("cert.pem", "CERTIFICATE", sign(leaf, root, leafKey, rootKey))
	der, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	write("key.pem", "EC PRIVATE KEY", der)
	return authority
}

// Credentials of every kind are taken, wrong ones are not, and no error repeats them. Files are read again for each
// connection.
func TestCredentials(t *testing.T) {
	t.Parallel()
	const (
		token = "a-secret-token"
		seed  = "SUAKGGWFV6DKN34A63DUZAH7IRCRPLGNZU5RP6JMYADTMOMNNDQIHY6Q5U" // of this test only
		nkey  = "UBMMM7ZTI3AN4AJGJHZIUEK6KSNPHYYGEM57SZWCQRVKJMROYHTG45PU"
		other = "SUAFXCKGGXGAJPMTFFVSLP7ZMQ2QJGQXZ7XN2QNTWBJYLFUOAGUYQVVLRE"
	)
	for name, test := range map[string]struct {
		server      string
		good, wrong string // what is in the file
		config      func(file string) Config
	}{
		"a password": {
			fmt.Sprintf("authorization { users: [ { user: relay, password: %q } ] }", password), password + "\n", "hunter2",
			func(file string) Config { return Config{User: "relay", PasswordFile: file} },
		},
		"a token": {
			fmt.Sprintf("authorization { token: %q }", token), token, "hunter2",
			func(file string) Config { return Config{TokenFile: file} },
		},
		"an nkey": {
			fmt.Sprintf("authorization { users: [ { nkey: %s } ] }", nkey), seed, other,
			func(file string) Config { return Config{NKeyFile: file} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t, natstest.Options{Config: test.server})
			file := filepath.Join(t.TempDir(), "secret")
			put := func(content string) {
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config := test.config(file)
			config.URLs = []string{server.URL}
			put(test.wrong)
			s := connectedSink(t, config)
			err := s.Probe(t.Context())
			if _, ok := errors.AsType[*relay.UnavailableError](err); !ok || strings.Contains(err.Error(), test.wrong) {
				t.Errorf("with a wrong one: %v", err)
			}
			put(test.good)
			if err := s.Probe(t.Context()); err != nil {
				t.Error(err)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			s.conn.close()
			if err := s.Probe(t.Context()); err == nil || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("without the file: %v", err)
			}
		})
	}
}

// A user with the permissions that docs/operate/sinks.md names publishes in each way, and Check sees the settings.
func TestTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{Config: `
		accounts: { A: { jetstream: enabled, users: [
			{ user: admin, password: admin },
			{ user: relay, password: relay, permissions: {
				publish: ["shop.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*"], subscribe: ["_INBOX.>"] } } ] } }`})
	js := server.Connect(nats.UserInfo("admin", "admin"))
	for name, config := range map[string]jetstream.StreamConfig{
		"window": {}, "fast": {AllowBatchPublish: true}, "atomic": {AllowAtomicPublish: true},
	} {
		config.Name, config.Subjects = name, []string{"shop." + name}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		s := connectedSink(t, Config{URLs: []string{server.URL}, User: "relay", Password: "relay"})
		if err := s.Probe(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		accepted(t, s.Publish(t.Context(), messagesTo("shop."+name, 0, 500, 50)))
		findings, err := s.Check(t.Context(), []string{"shop." + name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, f := range findings {
			if strings.Contains(f.What, "may not") {
				t.Errorf("%s: %s", name, f.What)
			}
		}
	}
}
