package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// apiConnections bounds what the API can ask of the database at once: however many
// requests come, dispatchers keep their share of it.
const apiConnections = 8

// apiServer serves the API on an address of its own.
type apiServer struct {
	addr     string
	listener net.Listener // taken at the start, so that an address in use is a mistake found then
	handler  http.Handler
	producer *outbox.Producer
	pool     *pgxpool.Pool
	bound    time.Duration // of a stop
	stopping func()        // ends the streams of events
	log      *slog.Logger
}

func (p *process) addAPI() error {
	log := p.log.With(slog.String("component", "api"))
	pool, err := openPoolOf(p.config, apiConnections)
	if err != nil {
		return err
	}
	config := p.config.API
	config.Pool = cmp.Or(config.Pool, pool)
	config.Producer = cmp.Or(config.Producer, p.config.Producer, outbox.NewProducer(config.Pool, outbox.NotifyCoalesced))
	if config.Authenticator == nil {
		config.Authenticator = access.NewTokens(config.Pool, access.TokensConfig{})
	}
	config.Registerer = p.config.Registry
	stopping := make(chan struct{})
	config.Stopping = stopping
	config.Logger = log
	handler, err := api.New(config)
	if err != nil {
		closePool(pool)
		return err
	}
	ln, err := net.Listen("tcp", p.config.APIAddr)
	if err != nil {
		closePool(pool)
		return fmt.Errorf("API address: %w", err)
	}
	p.api = &apiServer{
		addr: ln.Addr().String(), listener: ln, handler: handler, producer: config.Producer, pool: pool, log: log,
		bound: max(p.config.GracePeriod, 0) + stopMargin/2, stopping: sync.OnceFunc(func() { close(stopping) }),
	}
	p.components = append(p.components, &component{name: "api", run: p.api.run, look: func() State { return State{State: stateWorking} }})
	return nil
}

// run serves until ctx ends, and then until the requests that have come are answered.
func (a *apiServer) run(ctx context.Context) error {
	ln := a.listener
	a.listener = nil
	if ln == nil { // it stopped by itself and is started again
		var err error
		if ln, err = net.Listen("tcp", a.addr); err != nil {
			return err
		}
	}
	server := &http.Server{
		Handler:           a.handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "API listens", slog.String("addr", a.addr))
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(background, a.bound)
		defer cancel()
		a.stopping() // Shutdown would wait for them
		err := server.Shutdown(bound)
		if err != nil {
			_ = server.Close() // whoever asks now is cut off
		}
		_ = a.producer.Flush(bound) // the poll covers a lost wake-up
		stopped <- err
	})
	err := server.Serve(ln)
	if stop() { // ctx has not ended
		return err
	}
	if err := <-stopped; !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.New("requests were cut off")
}
