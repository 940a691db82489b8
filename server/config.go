package server

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// Config sets how the API and the console are served.
type Config struct {
	// Addr is the address, such as "0.0.0.0:8080"; "" serves the API nowhere. TLS must end in front of it.
	Addr string
	// NoAPI serves the console alone.
	NoAPI bool
	// Console sets how the console is served; nil serves none. Its Logger is the process's. If its Pool, Authenticator,
	// Kinds or Watch is unset, it uses the API's; AnonymousLoopback is the API's, too.
	Console *console.Config
	// ConsoleAddr is the console's own address; "" serves it below /console/ of Addr.
	ConsoleAddr string
	// Manual serves the manual below /manual/ on each address of the API or the console; nil serves none. It is
	// docs/site.Handler, which a program that embeds this package need not include.
	Manual http.Handler
	// Connections limits the concurrent connections of clients; 0 means 4096. Others wait until one ends.
	Connections int
	// Optional lets the process run without both if their address is taken, and without the console if only ConsoleAddr
	// is.
	Optional bool
	// DatabaseURL is where the API connects; "" means the process's. With a login of its own, a member of outbox_api
	// alone, row security separates its tenants in a process that also dispatches.
	DatabaseURL string
	// OIDC is a provider whose JWTs the API accepts in addition to its own tokens; nil means none. Its Logger is the
	// process's. It has no effect if API has an Authenticator.
	OIDC *access.OIDCConfig
	// API configures the API. Logger, Registerer and Stopping are the process's, and so is Producer if it is nil; a nil
	// Pool means a pool of its own with 8 connections, and a QuickPool with 10.
	API api.Config
}

func (c Config) validate() error {
	var errs []error
	if c.Connections < 0 {
		errs = append(errs, fmt.Errorf("server: %w", invalid.Field("Config.Connections",
			"is %d, want more than 0, or 0 for the default", c.Connections)))
	}
	if c.OIDC != nil {
		if err := c.OIDC.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("OIDC: %w", err))
		}
	}
	return errors.Join(errs...)
}
