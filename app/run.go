package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
)

// background is the context for work that must outlive the context of Run.
var background = context.Background()

// stopMargin is how much longer than the grace period a stop may take, to store outcomes, before Run gives up on a
// handler that ignores its context.
const stopMargin = 10 * time.Second

// ErrCut is returned by Run when [Config.Cut] ended a stop early.
var ErrCut = errors.New("stopped at once: jobs that were running run again when their leases lapse")

// Run works until ctx ends, or until a newer release migrates the database in a way that excludes this build, and then
// stops in good order; see the package's guarantees. With a nil mux, or one without handlers, it runs everything but a
// dispatcher.
//
// It returns nil after an orderly stop that ctx began. If the configuration is wrong, it returns an error before it has
// started anything. If this build is too old for the database, the error names the release. If the stop was not
// orderly, it returns [ErrCut] or an error that names what did not stop, such as the dispatcher when a handler ignores
// the end of its context; the process should then exit.
func Run(ctx context.Context, mux *dispatcher.Mux, config Config) error {
	p, err := newProcess(mux, config)
	if err != nil {
		return err
	}
	return p.run(ctx)
}

// process is one call of Run.
type process struct {
	config     Config
	log        *slog.Logger
	pool       *pgxpool.Pool // for the process itself
	handlers   *pgxpool.Pool // for handlers; dispatcher, reaper and scheduler derive their settings from it
	gate       *gate
	components []*component
	listener   *listener.Listener // nil while off
	admin      *admin             // nil while off

	draining  atomic.Bool
	readiness readiness
}

// newProcess makes everything and starts nothing. Its errors are mistakes in the configuration.
func newProcess(mux *dispatcher.Mux, config Config) (_ *process, err error) {
	defer func() {
		if err != nil {
			closeComponents(config.Components)
		}
	}()
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	pool, handlers, err := openPools(config)
	if err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	p := &process{config: config, log: config.Logger, pool: pool, handlers: handlers}
	p.gate = newGate(pool, config, &p.readiness)
	if err := p.compose(mux); err != nil {
		p.closePools()
		return nil, fmt.Errorf("configure: %w", err)
	}
	return p, nil
}

// run starts everything, waits for ctx, and stops everything in order.
func (p *process) run(ctx context.Context) error {
	defer closeComponents(p.config.Components)
	defer p.closePools()
	stopAdmin := p.admin.start()
	defer stopAdmin()

	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var components sync.WaitGroup
	components.Go(func() { p.gate.run(working) })
	for _, c := range p.components {
		components.Go(func() { p.supervise(working, c) })
	}
	ended := make(chan struct{})
	go func() {
		components.Wait()
		close(ended)
	}()

	var refused error
	select {
	case <-ctx.Done():
	case refused = <-p.gate.refused:
	}
	p.draining.Store(true) // become unready first
	p.log.LogAttrs(ctx, slog.LevelInfo, "stopping", slog.Any("cause", cmp.Or(refused, context.Cause(ctx))),
		slog.String("grace_period", p.config.GracePeriod.String()))
	if p.gate.isOpen() { // before that, no proxy has seen it ready
		p.awaitProxies()
	}
	stop()
	err := errors.Join(refused, p.awaitEnd(ended))
	if err == nil {
		p.log.LogAttrs(ctx, slog.LevelInfo, "stopped")
	}
	return err
}

// awaitProxies keeps serving for the drain delay: a proxy that has not yet seen the process become unready still sends
// it requests, which would otherwise be refused.
func (p *process) awaitProxies() {
	if p.config.DrainDelay <= 0 {
		return
	}
	delay := time.NewTimer(p.config.DrainDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-p.config.Cut:
	}
}

func (p *process) awaitEnd(ended <-chan struct{}) error {
	patience := time.NewTimer(max(p.config.GracePeriod, 0) + stopMargin)
	defer patience.Stop()
	select {
	case <-ended:
		var errs []error
		for _, c := range p.components {
			errs = append(errs, c.untidy)
		}
		return errors.Join(errs...)
	case <-p.config.Cut:
		return ErrCut
	case <-patience.C:
		var errs []error
		select {
		case <-p.gate.ended:
		default:
			errs = append(errs, fmt.Errorf(
				"the wait for the schema, or its migration, has not stopped %s after the grace period", stopMargin))
		}
		for _, c := range p.components {
			if c.running.Load() {
				errs = append(errs, fmt.Errorf("%s has not stopped %s after the grace period", c.name, stopMargin))
			}
		}
		return errors.Join(errs...)
	}
}
