package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// Ready returns nil while the database answers claims, and otherwise an error that says what is wrong.
func (d *Dispatcher) Ready() error {
	if !d.started.Load() {
		return errors.New("not started")
	}
	return d.process.health.err()
}

// Run works until ctx ends. Then it stops claiming, gives back jobs that have not started, lets running jobs finish
// within the grace period, ends the contexts of the remaining ones with the cause [ErrShutdown], and returns nil once
// every outcome is stored. It may be called once. It returns an error if handlers ignore the end of their contexts; it
// also returns one, before it claims anything, if a release has migrated the schema that no longer works alongside this
// one. An unreachable database is no error.
func (d *Dispatcher) Run(ctx context.Context) error {
	if d.started.Swap(true) {
		return fmt.Errorf("dispatcher: %w", backoff.ErrRanBefore)
	}
	pool, extending, err := d.openPools(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.compose(ctx, pool, extending)
	p := d.process
	p.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher started", slog.String("worker", p.worker),
		slog.Any("queues", slices.Sorted(maps.Keys(d.config.Queues))), slog.Any("kinds", p.kinds))

	if err = awaitFloor(ctx, p, d.db); err != nil || ctx.Err() != nil || !registerHooks(ctx, p, d.db, d.deathHooks) {
		pool.Close()
		extending.Close()
		return err
	}
	if err = d.work(ctx); err == nil { // after an error some goroutine may still use them
		pool.Close()
		extending.Close()
	}
	d.settler.reporter.failures.End()
	p.log.LogAttrs(ctx, slog.LevelInfo, "dispatcher stopped", slog.String("worker", p.worker))
	return err
}

// openPools opens the dispatcher's own connections, and one more that only extends leases, so that nothing else delays
// extensions.
func (d *Dispatcher) openPools(ctx context.Context) (pool, extending *pgxpool.Pool, err error) {
	pool, err = openControlPool(ctx, d.user, settlers+2+report.Conns+min(len(d.config.Queues), 16))
	if err != nil {
		return nil, nil, err
	}
	extending, err = openControlPool(ctx, d.user, 1)
	if err != nil {
		pool.Close()
	}
	return pool, extending, err
}

// abandonAfter is how long after the grace period handlers have to return and settlements to be stored.
const abandonAfter = 8 * time.Second

// work runs every goroutine of the dispatcher and returns when all have ended. It abandons what has not ended some
// seconds after the grace period: handlers that ignore the end of their context, and outcomes that the database does
// not accept.
func (d *Dispatcher) work(ctx context.Context) error {
	afterJobs, endAfterJobs := context.WithCancel(context.WithoutCancel(ctx))
	defer endAfterJobs()
	stages := d.begin(ctx, afterJobs, endAfterJobs)
	d.process.phase.Store(claiming)
	<-ctx.Done()
	d.process.phase.Store(draining)
	// The grace period starts here. It covers both the handlers and the storing of their outcomes.
	grace := max(d.config.GracePeriod, 0)
	defer time.AfterFunc(grace, d.cutOff).Stop()
	abandoned := time.NewTimer(grace + abandonAfter)
	defer abandoned.Stop()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for _, s := range stages {
			s.end()
			s.wait()
		}
	}()
	select {
	case <-finished:
		return nil
	case <-abandoned.C:
		return fmt.Errorf("dispatcher: %d jobs were not settled %s after the grace period; their leases lapse", d.leases.count(), abandonAfter)
	}
}

// stage groups goroutines that end together, when nothing uses them any more.
type stage struct {
	end  func() // makes them end
	wait func() // until they have ended
}

func start(end func(), goroutines ...func()) stage {
	running := new(sync.WaitGroup)
	for _, run := range goroutines {
		running.Go(run)
	}
	return stage{end, running.Wait}
}

// begin starts every goroutine. It returns them in the order in which they end: each stage is made to end when those
// before it have ended.
func (d *Dispatcher) begin(ctx, afterJobs context.Context, endAfterJobs func()) []stage {
	claims := []func(){func() { d.fanOut(ctx) }}
	for _, q := range d.queues {
		claims = append(claims, func() { q.run(ctx) })
		q.workers.start()
	}
	settlement := slices.Repeat([]func(){d.settler.run}, settlers)
	settlement = append(settlement,
		func() { d.leases.keep(afterJobs) },
		func() { d.leases.watch(afterJobs) },
		func() { d.leases.watchCancellations(afterJobs) },
		func() { heartbeat(afterJobs, d.db, d.showing(), d.config.Hearing) })
	return []stage{
		start(func() {}, claims...), // they end with ctx
		{d.endWorkers, d.running.Wait},
		start(d.recorder.Stop, d.recorder.Run),
		start(func() { endAfterJobs(); close(d.settler.ended) }, settlement...),
		start(func() { close(d.settler.refused) }, func() { d.settler.settleRefused(afterJobs) }),
		start(d.waiters.stop, d.waiters.run),
		start(func() { close(d.promoter.stop) }, d.promoter.run),
		start(d.peers.stop, d.peers.run),
	}
}

// endWorkers gives back the jobs that have not started.
func (d *Dispatcher) endWorkers() {
	for _, q := range d.queues {
		q.batches.giveBack()
		q.workers.close()
	}
	// Other processes do not know of the jobs that this process promoted or was about to start: notify them.
	d.peers.notify()
}

// cutOff ends the grace period: it ends the contexts of handlers that still run.
func (d *Dispatcher) cutOff() {
	d.process.phase.Store(cutOff)
	if n := d.leases.count(); n > 0 {
		d.process.log.LogAttrs(d.process.handlerContext, slog.LevelWarn, "running jobs cut off: the grace period is over", slog.Int("jobs", n))
	}
	d.leases.cut()
}
