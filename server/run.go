// Package server makes one process of package app and the API: the command posthaste is
// server.Run with webhooks. It stands apart because a worker that serves no API should not
// compile one.
//
//	err := server.Run(ctx, &mux, app.Config{DatabaseURL: url, Cut: cut}, server.Config{Addr: "127.0.0.1:8080"})
//
// # Threads
//
//	goroutine       started by   ended by                   owns
//	API             app.Run      stop, after its requests   its connections, a pool
//	OIDC discovery  the API      its end, or success        nothing
package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
)

// Run is [app.Run] with the API as one more component, "api" in /readyz. A mistake in
// config, too, is an error before anything has started.
func Run(ctx context.Context, mux *dispatcher.Mux, process app.Config, config Config) error {
	process, a, err := compose(process, config)
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	if a != nil {
		defer a.close()
	}
	return app.Run(ctx, mux, process)
}

// compose adds the API, if there is to be one, to the components of a process.
func compose(process app.Config, config Config) (app.Config, *apiServer, error) {
	if config.Addr == "" {
		return process, nil, nil
	}
	if err := process.Validate(); err != nil {
		return process, nil, err
	}
	if process.Logger == nil {
		process.Logger = slog.New(slog.DiscardHandler)
	}
	if process.Registry == nil {
		process.Registry = prometheus.NewRegistry()
	}
	a, err := newAPI(process, config)
	if a == nil {
		return process, nil, err
	}
	process.Components = append(process.Components[:len(process.Components):len(process.Components)],
		app.Component{Name: "api", Run: a.run, Ready: a.provider.ready, Pool: a.pool})
	return process, a, nil
}
