// Package credentials reads the files by which a sink and its broker know each other: secrets and certificates.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Secret is the text, or what is in the file without the space around it. Its error names the file.
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

// Certificates are files in PEM, each "" if there is none.
type Certificates struct {
	CAFile          string // to trust instead of the system's
	CertificateFile string // our own, with KeyFile
	KeyFile         string
}

// Any reports whether there is a file.
func (c Certificates) Any() bool { return c != Certificates{} }

// Validate returns what is wrong with them before any is read.
func (c Certificates) Validate() error {
	if (c.CertificateFile == "") != (c.KeyFile == "") {
		return errors.New("CertificateFile and KeyFile go together")
	}
	return nil
}

// TLS reads the files. The result is for TLS 1.2 and later.
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

// IsUntrusted reports whether an error is that the other side's certificate is not one to trust: it is of another host,
// has expired, or is signed by nobody known.
func IsUntrusted(err error) bool {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, otherHost := errors.AsType[x509.HostnameError](err)
	return unverified || otherHost
}
