package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/relay/webhook"
	"github.com/posthaste-dev/posthaste/server"
)

func (p *program) serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run jobs, the API, the console, or all of them, until it is stopped",
		Description: `Waits until the database and the schema exist, and for the database whenever it is
unavailable. Webhooks run the jobs; jobs of kinds without a webhook are left to programs
with handlers of their own.

The role api serves the API ("posthaste docs reference/api") on --api-addr, and over NATS
if --relay-config has rpc. The role console serves the web console below /console/ of that
address, or on --console-addr. The role relay publishes events to the brokers that
--relay-config names: see "posthaste docs operate/relay", and operate/nats.`,
		Flags: flags(),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			s, err := p.load(c)
			if err != nil {
				return err
			}
			if err := requireDatabase(s); err != nil {
				return err
			}
			s = s.withRoles()
			if err := s.checkDuties(); err != nil {
				return err
			}
			if err := p.checkProvider(c, s); err != nil {
				return err
			}
			if s.server.OIDC != nil {
				if err := s.server.OIDC.Validate(); err != nil {
					return usagef("--oidc-…: %w", err)
				}
			}
			if err := s.checkSignIn(); err != nil {
				return err
			}
			return p.serve(ctx, s, s.idle(c))
		},
	}
}

// serve runs the process until a signal or the end of ctx. idle are flags to warn of: see settings.idle.
func (p *program) serve(ctx context.Context, s settings, idle []string) error {
	mux, err := webhookMux(s)
	if err != nil {
		return err
	}
	ctx, s.app.Cut = app.Signals(ctx)
	s.app.Logger = p.logger(s)
	warnOfVariables(s)
	if len(idle) > 0 {
		s.app.Logger.Warn("flags that have no effect with these roles", "flags", idle, "roles", s.roles)
	}
	stop, err := p.startTracing(ctx, s.trace, s.app.Logger)
	if err != nil {
		return err
	}
	defer stop()
	if s.app, err = withRelay(s); err != nil {
		return err
	}
	if s.app, err = withNATS(s, slices.Contains(s.roles, "api")); err != nil {
		return err
	}
	return namingAddress(server.Run(ctx, mux, s.app, s.server))
}

func webhookMux(s settings) (*dispatcher.Mux, error) {
	mux := new(dispatcher.Mux)
	for _, r := range s.webhooks {
		handler, err := webhook.Handler(r.url, webhook.Config{
			UserAgent: "posthaste/" + buildVersion(),
			Signing:   s.signing,
		})
		if err != nil {
			return nil, usagef("webhook of kind %q: %w", r.kind, err)
		}
		mux.HandleRaw(r.kind, handler)
	}
	return mux, nil
}
