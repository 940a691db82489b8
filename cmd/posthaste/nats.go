package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/nats/presence"
	"github.com/posthaste-dev/posthaste/relay/nats/rpc"
	"github.com/posthaste-dev/posthaste/server"
)

// natsService is rpc or presence in relay.yaml.
type natsService struct {
	NATS *natsSpec `yaml:"nats"` // with the fields of a sink
	// what the subjects begin with (default: rpc.v1 for rpc, posthaste.jobs for presence)
	SubjectPrefix text `yaml:"subjectPrefix"`
}

func (n *natsService) validate() error {
	switch {
	case n == nil:
		return nil
	case n.NATS == nil:
		return errors.New("want nats, with the url of a server")
	}
	err := n.NATS.config().Validate()
	if n.SubjectPrefix != "" {
		err = errors.Join(err, nats.CheckPrefix(string(n.SubjectPrefix)))
	}
	return err
}

// rpcConnections limits the concurrent use of the database by requests over NATS.
const rpcConnections = 4

// withNATS returns the process with its tasks on NATS besides publishing events: to answer operators, if it serves the
// API, and to announce its workers.
func withNATS(s settings, servesAPI bool) (app.Config, error) {
	c := s.relayConfig
	if c == nil {
		return s.app, nil
	}
	if c.RPC != nil && servesAPI {
		component, err := rpcComponent(s, c.RPC)
		if err != nil {
			return s.app, err
		}
		s.app.Components = append(s.app.Components, component)
	}
	if c.Presence != nil && !s.app.NoDispatch {
		reporter, err := presence.New(presence.Config{
			NATS: c.Presence.NATS.config(), SubjectPrefix: string(c.Presence.SubjectPrefix),
			Logger: s.app.Logger.With(slog.String("component", "presence")),
		})
		if err != nil {
			return s.app, err
		}
		s.app.Components = append(s.app.Components, app.Component{
			Name: "presence", Run: reporter.Run,
			Dispatching: reporter.Report,
		})
	}
	return s.app, nil
}

// rpcComponent serves operators over NATS. It uses the API's login and tokens.
func rpcComponent(s settings, c *natsService) (app.Component, error) {
	process := s.app
	process.DatabaseURL = cmp.Or(s.server.DatabaseURL, process.DatabaseURL)
	pool, err := app.OpenPool(process, rpcConnections, server.LockWait)
	if err != nil {
		return app.Component{}, err
	}
	log := s.app.Logger.With(slog.String("component", "rpc"))
	known := server.NewAuthenticator(pool, s.server.OIDC, log)
	service, err := rpc.New(rpc.Config{
		NATS: c.NATS.config(), SubjectPrefix: string(c.SubjectPrefix), Pool: pool, Authenticator: known,
		RequestsLimit: s.server.API.RequestsLimit, Version: strings.TrimPrefix(buildVersion(), "v"), Logger: log,
	})
	if err != nil {
		return app.Component{}, err
	}
	return app.Component{Name: "rpc", Pool: pool, NeedsSchema: true, Run: func(ctx context.Context) error {
		var discovery sync.WaitGroup
		defer discovery.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		discovery.Go(func() { known.Discover(ctx) })
		return service.Run(ctx)
	}}, nil
}
