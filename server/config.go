package server

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/console"
)

// Config is how the API and the console are served.
type Config struct {
	// Addr is where, such as "0.0.0.0:8080"; "" serves the API nowhere. TLS ends in front of it.
	Addr string
	// NoAPI serves the console alone.
	NoAPI bool
	// Console is how the console is served; nil serves none. Its Logger is the process's; what it lacks of Pool,
	// Authenticator, Kinds and Watch is the API's, and so is AnonymousLoopback.
	Console *console.Config
	// ConsoleAddr is where; "" is below /console/ of Addr.
	ConsoleAddr string
	// Manual serves the manual below /manual/ wherever the API or the console is; nil serves none. It is
	// docs/site.Handler, which a program that embeds this package need not have.
	Manual http.Handler
	// Connections is how many connections of clients there are at once; 0 is 4096.
	// Others wait until one ends.
	Connections int
	// Optional goes on without them if their address is taken, and without the console if only ConsoleAddr is.
	Optional bool
	// DatabaseURL is where the API connects to; "" is that of the process. With a login of
	// its own, a member of outbox_api alone, row security keeps its tenants apart in a
	// process that also dispatches.
	DatabaseURL string
	// OIDC is a provider whose JWTs the API takes besides its own tokens; nil is none.
	// Its Logger is the process's. It has no effect with an Authenticator in API.
	OIDC *access.OIDCConfig
	// API is how. Logger, Registerer and Stopping are the process's, and so is Producer if
	// it is nil; a nil Pool is one of 8 connections of its own.
	API api.Config
}

func (c Config) validate() error {
	var errs []error
	if c.Connections < 0 {
		errs = append(errs, errors.New("server: Connections is negative, want more than 0, or 0 for the default"))
	}
	if c.OIDC != nil {
		if err := c.OIDC.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("OIDC: %w", err))
		}
	}
	return errors.Join(errs...)
}
