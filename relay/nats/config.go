package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Config sets how to reach a NATS server. Files are read again for each connection, so that secrets can be rotated.
type Config struct {
	URLs []string // of the servers of one cluster: nats://, tls://, ws://, wss://; without credentials
	Name string   // of the connection, in the server's monitoring

	// Set at most one kind of credentials.
	CredentialsFile string // a JWT and its seed, as nsc writes them
	NKeyFile        string // a seed
	User            string // with Password or PasswordFile
	Password        string
	PasswordFile    string
	Token           string
	TokenFile       string

	CAFile          string // certificates to trust instead of those of the system
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string
}

// Validate reports every mistake. No error repeats a secret, nor a URL, which may contain one.
func (c Config) Validate() error {
	var errs []error
	if len(c.URLs) == 0 {
		errs = append(errs, invalid.Field("URLs", "is empty"))
	}
	for i, text := range c.URLs {
		at := fmt.Sprintf("URLs[%d]", i)
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "":
			errs = append(errs, invalid.Field(at, "is not a URL such as nats://host:4222"))
		case u.User != nil:
			errs = append(errs, invalid.Field(at, "has credentials in it: put them into fields of their own"))
		}
	}
	kinds := 0
	for _, given := range []bool{c.CredentialsFile != "", c.NKeyFile != "", c.User != "", c.Token != "" ||
		c.TokenFile != ""} {
		if given {
			kinds++
		}
	}
	if kinds > 1 {
		errs = append(errs, errors.New("more than one of CredentialsFile, NKeyFile, User and Token is set"))
	}
	if c.User == "" && (c.Password != "" || c.PasswordFile != "") {
		errs = append(errs, errors.New("a password is set without User"))
	}
	if c.Password != "" && c.PasswordFile != "" || c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("a secret is set both by itself and by its file"))
	}
	errs = append(errs, credentials.Certificates{CertificateFile: c.CertificateFile, KeyFile: c.KeyFile}.Validate())
	return errors.Join(errs...)
}

// prefixes matches tokens without wildcards, the first of which is not reserved by the server.
var prefixes = regexp.MustCompile(`^[^\s.*>\x00-\x1f$][^\s.*>\x00-\x1f]*(\.[^\s.*>\x00-\x1f]+)*$`)

// CheckPrefix returns why subjects cannot begin with text.
func CheckPrefix(text string) error {
	if !prefixes.MatchString(text) {
		return invalid.Field("SubjectPrefix", "is %q, want tokens with dots between them, such as a.b", text)
	}
	return nil
}

// These are nats.go's timeouts. [conn.next] waits for answers.
const (
	connectTimeout = 2 * time.Second  // per server
	writeTimeout   = 10 * time.Second // a connection that accepts no byte for so long is broken
	pingInterval   = 10 * time.Second // the connection is broken after two without an answer
)

// options returns the options of one connection, which is never re-established: see the package's documentation.
func (c Config) options(ctx context.Context, sockets *sockets) ([]nats.Option, error) {
	all := []nats.Option{
		nats.Name(c.Name), nats.NoReconnect(), nats.ReconnectBufSize(-1), nats.SetCustomDialer(&dialer{ctx, sockets}),
		nats.Timeout(connectTimeout), nats.FlusherTimeout(writeTimeout), nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
	}
	switch {
	case c.CredentialsFile != "":
		all = append(all, nats.UserCredentials(c.CredentialsFile))
	case c.NKeyFile != "":
		option, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the nkey: %w", err)
		}
		all = append(all, option)
	case c.User != "":
		password, err := credentials.Secret(c.Password, c.PasswordFile)
		if err != nil {
			return nil, err
		}
		all = append(all, nats.UserInfo(c.User, password))
	default:
		token, err := credentials.Secret(c.Token, c.TokenFile)
		if err != nil {
			return nil, err
		}
		all = append(all, nats.Token(token))
	}
	if c.CAFile != "" {
		all = append(all, nats.RootCAs(c.CAFile))
	}
	if c.CertificateFile != "" {
		all = append(all, nats.ClientCert(c.CertificateFile, c.KeyFile))
	}
	return all, nil
}
