package amqp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Config sets how to reach RabbitMQ. Files are read again for each connection, so that secrets can be rotated.
type Config struct {
	// URLs are addresses of the nodes of one cluster, one of which is enough: amqp://host:5672/vhost or
	// amqps://host:5671/vhost, without credentials. Without a path the virtual host is "/".
	URLs []string
	Name string // of the connection, in the server's management; "" means "posthaste"

	User         string // with Password or PasswordFile; "" logs in by the certificate
	Password     string
	PasswordFile string

	CAFile          string // certificates to trust instead of those of the system
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string

	// Pipelined sends a key's next message before the last one is confirmed, which is faster where most messages have
	// few keys. Set it if every destination leads to quorum queues or streams that accept all messages. A queue that
	// rejects some (overflow: reject-publish), or is created or deleted meanwhile, may otherwise store a key's later
	// message before an earlier one. See Order in the package's documentation.
	Pipelined bool
}

// validate reports every mistake. No error repeats a secret, nor a URL, which may contain one.
func (c Config) validate() error {
	var errs []error
	if len(c.URLs) == 0 {
		errs = append(errs, invalid.Field("URLs", "is empty"))
	}
	for i, text := range c.URLs {
		at := fmt.Sprintf("URLs[%d]", i)
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "amqp" && u.Scheme != "amqps":
			errs = append(errs, invalid.Field(at, "is not a URL such as amqp://host:5672/vhost"))
		case u.User != nil:
			errs = append(errs, invalid.Field(at, "has credentials in it: put them into User and PasswordFile"))
		case u.RawQuery != "":
			errs = append(errs, invalid.Field(at, "has parameters in it, of which there are none"))
		case u.Scheme == "amqp" && c.certificates().Any():
			errs = append(errs, fmt.Errorf("certificates are given, and URLs[%d] is not amqps://", i))
		default:
			if _, err := amqp.ParseURI(text); err != nil {
				errs = append(errs, fmt.Errorf("URLs[%d]: %w", i, withoutURL(err)))
			}
		}
	}
	if c.User == "" && c.CertificateFile == "" {
		errs = append(errs, errors.New("neither User nor CertificateFile is set"))
	}
	if c.User == "" && (c.Password != "" || c.PasswordFile != "") {
		errs = append(errs, errors.New("a password is set without User"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("both Password and PasswordFile are set"))
	}
	errs = append(errs, c.certificates().Validate())
	return errors.Join(errs...)
}

// withoutURL removes the URL from an error of net/url.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// login returns the ways to log in.
func (c Config) login() ([]amqp.Authentication, error) {
	if c.User == "" {
		return []amqp.Authentication{&amqp.ExternalAuth{}}, nil
	}
	password, err := credentials.Secret(c.Password, c.PasswordFile)
	if err != nil {
		return nil, err
	}
	return []amqp.Authentication{&amqp.PlainAuth{Username: c.User, Password: password}}, nil
}

// tls returns nil if all settings are the defaults.
func (c Config) tls() (*tls.Config, error) {
	if !c.certificates().Any() {
		return nil, nil
	}
	return c.certificates().TLS()
}

func (c Config) certificates() credentials.Certificates {
	return credentials.Certificates{CAFile: c.CAFile, CertificateFile: c.CertificateFile, KeyFile: c.KeyFile}
}
