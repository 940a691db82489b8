package redis

import (
	"crypto/tls"
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Config sets how to reach a Redis or Valkey server. Files are read again for each connection, so that secrets can be
// rotated.
type Config struct {
	URL  string // redis://host:6379/0 or rediss://host:6379/0 for TLS, without credentials; the path is the database
	Name string // of the connection, in CLIENT LIST; "" means "posthaste"

	User         string // of the server's ACL; "" with a password means the user default
	Password     string
	PasswordFile string

	CAFile          string // certificates to trust instead of those of the system
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string

	// CreateStreams creates streams that do not exist. Otherwise such a stream is a missing destination, whose messages
	// wait until somebody creates it. A newly created stream has no consumer groups.
	CreateStreams bool
}

// validate reports every mistake. No error repeats a secret, nor the URL, which may contain one.
func (c Config) validate() error {
	var errs []error
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "redis" && u.Scheme != "rediss":
		errs = append(errs, invalid.Field("URL", "is not one such as redis://host:6379/0"))
	case u.User != nil:
		errs = append(errs, invalid.Field("URL", "has credentials in it: put them into User and PasswordFile"))
	case u.RawQuery != "":
		errs = append(errs, invalid.Field("URL", "has parameters in it, of which there are none"))
	default:
		if _, err := database(u); err != nil {
			errs = append(errs, err)
		}
	}
	if c.User != "" && c.Password == "" && c.PasswordFile == "" {
		errs = append(errs, errors.New("a User is set without a password"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("both Password and PasswordFile are set"))
	}
	if strings.ContainsFunc(c.Name, func(r rune) bool { return r <= ' ' || r > '~' }) { // CLIENT SETNAME requires it
		errs = append(errs, invalid.Field("Name", "is %q: want no spaces, and no characters that are not ASCII", c.Name))
	}
	errs = append(errs, c.certificates().Validate())
	if c.certificates().Any() && u != nil && u.Scheme == "redis" {
		errs = append(errs, errors.New("certificates are given, and the URL is not rediss://"))
	}
	return errors.Join(errs...)
}

// database returns the number in a URL's path.
func database(u *url.URL) (int, error) {
	path := strings.Trim(u.Path, "/")
	if path == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(path, 10, 16)
	if err != nil {
		return 0, invalid.Field("URL", "has a path that is not the number of a database")
	}
	return int(n), nil
}

// tls returns nil for a connection without TLS.
func (c Config) tls(u *url.URL) (*tls.Config, error) {
	if u.Scheme != "rediss" {
		return nil, nil
	}
	config, err := c.certificates().TLS()
	if err == nil {
		config.ServerName = u.Hostname()
	}
	return config, err
}

func (c Config) certificates() credentials.Certificates {
	return credentials.Certificates{CAFile: c.CAFile, CertificateFile: c.CertificateFile, KeyFile: c.KeyFile}
}
