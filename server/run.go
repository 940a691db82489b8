// Package server combines package app, the API and the console in one process: the command posthaste is server.Run with
// webhooks. It is a package of its own because a worker without an API should not compile one.
//
//	err := server.Run(ctx, &mux, app.Config{DatabaseURL: url, Cut: cut}, server.Config{Addr: "127.0.0.1:8080"})
//
// # Threads
//
//	goroutine       started by   ended by                   owns
//	API             app.Run      stop, after its requests   its connections, two pools
//	console         app.Run      stop, after its requests   its connections, if it has an address of its own
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

// Run runs a process as [app.Run] does, with the API as one more component, "api" in /readyz, and the console as
// another, "console", if it has an address of its own. A mistake in config also gives an error before anything has
// started.
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

// compose adds the API and the console, if they are configured, to the components of a process.
func compose(process app.Config, config Config) (app.Config, *apiServer, error) {
	if config.Addr == "" && (config.Console == nil || config.ConsoleAddr == "") {
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
	added := []app.Component{{Name: a.name, Run: a.run, Ready: a.ready, Pool: a.pool, QuickPool: a.quick}}
	if beside := a.beside; beside != nil {
		added = append(added, app.Component{Name: beside.name, Run: beside.run})
	}
	process.Components = append(process.Components[:len(process.Components):len(process.Components)], added...)
	return process, a, nil
}
