// Package credentials reads the files by which a sink and its broker authenticate each other: secrets and certificates.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Secret returns text, or the file's content without surrounding space. Its error names the file.
func Secret(text, file string) (string, error) {
	if file == "" {
		return text, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// Certificates names PEM files, each "" if there is none.
type Certificates struct {
	CAFile          string // certificates to trust instead of the system's
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string
}

// Any reports whether any file is set.
func (c Certificates) Any() bool { return c != Certificates{} }

// Validate returns mistakes that show before any file is read.
func (c Certificates) Validate() error {
	if (c.CertificateFile == "") != (c.KeyFile == "") {
		return errors.New("CertificateFile and KeyFile go together")
	}
	return nil
}

// TLS reads the files and returns a configuration for TLS 1.2 and later.
func (c Certificates) TLS() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		content, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CAFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("%s has no certificate in it", c.CAFile)
		}
	}
	if c.CertificateFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertificateFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read CertificateFile and KeyFile: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// IsUntrusted reports whether err means that the peer's certificate is not trusted: it is for another host, has
// expired, or is signed by an unknown authority.
func IsUntrusted(err error) bool {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, otherHost := errors.AsType[x509.HostnameError](err)
	return unverified || otherHost
}
