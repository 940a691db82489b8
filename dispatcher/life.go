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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/presence"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Ready returns nil if the dispatcher's latest statement succeeded, and otherwise its error. Before Run it returns an
// error. It is safe for concurrent use.
func (d *Dispatcher) Ready() error {
	if d.common.phase.Load() == idle {
		return errors.New("not started")
	}
	return d.common.health.Err()
}

// Run works until ctx ends. Then it stops claiming, gives back jobs that have not started, and lets running jobs finish
// within the grace period; after that it ends their contexts with the cause [ErrShutdown]. It returns nil when its
// goroutines have ended. An outcome that the database still does not accept after the grace period is logged and
// dropped: that job runs again when its lease lapses.
//
// Run returns an error if handlers ignore the end of their contexts, if it is called twice, or, before it claims
// anything, if this build is too old for the schema. It retries while the database is unreachable.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.common.phase.CompareAndSwap(idle, starting) {
		return fmt.Errorf("dispatcher: %w", backoff.ErrRanBefore)
	}
	pool, extending, err := d.openPools(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.compose(ctx, pool, extending)
	p := d.common
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
	pool, err = openControlPool(ctx, d.callerPool, settlers+2+report.Conns+min(len(d.config.Queues), 16))
	if err != nil {
		return nil, nil, err
	}
	extending, err = openControlPool(ctx, d.callerPool, 1)
	if err != nil {
		pool.Close()
	}
	return pool, extending, err
}

const (
	giveUpAfter  = 2 * hintTimeout
	hangUpAfter  = giveUpAfter + statementTimeout
	abandonAfter = hangUpAfter + hintTimeout
)

// work runs every goroutine of the dispatcher and returns when all have ended. It abandons what has not ended some
// seconds after the grace period, because handlers ignore the end of their context. The others have ended by then, even
// if the database does not answer:
//
//	grace period over    giveUpAfter                     hangUpAfter         abandonAfter
//	tries are repeated      statements under way end,        no statement goes on
//	                        each outcome that is left
//	                        has one short try
func (d *Dispatcher) work(ctx context.Context) error {
	afterJobs, endAfterJobs := context.WithCancel(context.WithoutCancel(ctx))
	defer endAfterJobs()
	defer d.hangUp()
	d.common.phase.Store(claiming)
	stages := d.begin(ctx, afterJobs, endAfterJobs)
	<-ctx.Done()
	d.common.phase.Store(draining)
	// The grace period starts here. It covers both the handlers and the storing of their outcomes.
	grace := max(d.config.GracePeriod, 0)
	defer time.AfterFunc(grace, d.cutOff).Stop()
	defer time.AfterFunc(grace+giveUpAfter, d.giveUp).Stop()
	defer time.AfterFunc(grace+hangUpAfter, d.hangUp).Stop()
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
		return fmt.Errorf("dispatcher: %d jobs were not settled %s after the grace period; their leases lapse",
			d.leases.Count(), abandonAfter)
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
	holding, endHolding := context.WithCancel(context.WithoutCancel(ctx))
	claims := []func(){func() { d.fanOut(ctx) }}
	for _, q := range d.queues {
		claims = append(claims, func() { q.run(ctx) })
		q.workers.start()
	}
	d.settler.afterJobs = afterJobs
	settlement := slices.Repeat([]func(){d.settler.run}, settlers)
	settlement = append(settlement,
		func() { d.leases.WatchCancellations(afterJobs) },
		func() { d.showPresence(afterJobs) })
	return []stage{
		start(func() {}, claims...), // they end with ctx
		{d.endWorkers, d.running.Wait},
		start(d.recorder.Stop, d.recorder.Run),
		start(func() { endAfterJobs(); close(d.settler.ended) }, settlement...),
		{func() {}, d.settler.awaitRefused},
		// Outcomes may have waited for a lock until now. A lease that lapses meanwhile lets the job run again.
		start(endHolding, func() { d.leases.Keep(holding) }, func() { d.leases.Watch(holding) }),
		start(func() { d.waiters.stop(); d.promoter.Stop() }, d.waiters.run, d.promoter.Run),
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
	d.common.phase.Store(cutOff)
	if n := d.leases.Count(); n > 0 {
		d.common.log.LogAttrs(d.common.handlerContext, slog.LevelWarn,
			"running jobs cut off: the grace period is over", slog.Int("jobs", n))
	}
	d.leases.EndAll(ErrShutdown)
}

// Channel is the NOTIFY channel on which dispatchers learn of jobs. A listener whose signal is Config.Wake listens to
// it. Notifications carry no data: any role may read and forge them.
const Channel = engine.Channel

// Attach connects the dispatcher to a producer in the same program that uses the same database. When a transaction that
// the producer began has enqueued jobs, its commit wakes the dispatcher before it returns: the dispatcher learns of its
// jobs without waiting for the database's notification, which goes to the other processes. If a transaction enqueued
// one job that can start at once, and the dispatcher has nothing else to do in that queue, the commit also claims the
// job for it: the job starts as soon as the commit is known. If the process dies right after such a commit, the job
// waits for its lease to lapse, as after any claim.
//
// A producer has one dispatcher at a time, until detach is called. A producer with outbox.NotifyOff wakes nobody.
// Package app attaches its dispatcher to the producer that it is given. Attach is safe for concurrent use.
func (d *Dispatcher) Attach(p *outbox.Producer) (detach func()) {
	local := engine.InternalOf(p)
	local.SetWake(d.producerWake.Set)
	local.SetReserve(d.reserve)
	return func() {
		local.SetWake(nil)
		local.SetReserve(nil)
	}
}

func (d *Dispatcher) fanOut(ctx context.Context) {
	others := d.config.Wake
	for {
		poke := (*wake.Waker).Poke
		select {
		case <-ctx.Done():
			return
		case <-d.producerWake:
			poke = (*wake.Waker).PokeOwn
		case _, open := <-others:
			if !open {
				others = nil
				continue
			}
		}
		d.leases.Poke()
		for _, q := range d.queues {
			poke(q.capacity.Waker)
		}
	}
}

// reserve keeps a worker for a single job that the attached producer is about to commit. It returns nil if the job is
// to be claimed in the ordinary way: while the queue has jobs in hand, while another reservation is under way, or if
// this process has no handler for the kind, handles it in batches, or has found its dependency unavailable. It never
// blocks; a caller that gets a reservation must end it.
func (d *Dispatcher) reserve(kind, queue string, id [16]byte) engine.Reservation {
	if !d.common.phase.isClaiming() {
		return nil
	}
	q, r := d.queues[queue], d.common.routes[kind]
	if q == nil || r == nil || r.many != nil || !q.circuits.IsAvailable(kind) || !q.reserved.reserve(id) {
		return nil
	}
	return q.reserved
}

// Outage is a kind whose jobs wait in a queue of this process because their dependency is unavailable ([Unavailable]).
type Outage struct {
	Queue, Kind string
	Since       time.Time
}

// Outages returns the present outages, sorted by queue and kind. It returns none unless Run is at work.
func (d *Dispatcher) Outages() (all []Outage) {
	if !d.common.phase.isClaiming() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.config.Queues)) {
		for _, kind := range d.common.kinds {
			if since, lasts := d.queues[name].circuits.Of(kind).Since(); lasts {
				all = append(all, Outage{name, kind, since})
			}
		}
	}
	return all
}

// Presence describes a dispatcher as the list of workers shows it.
type Presence struct {
	Worker  string         // name under which it holds leases
	Version string         // of the program
	Queues  map[string]int // how many jobs of each queue it runs at once
	Kinds   []string       // with a handler
}

// Presence returns the dispatcher's description. It never changes.
func (d *Dispatcher) Presence() Presence {
	p := Presence{
		Worker: d.common.worker, Version: engine.Version(), Queues: map[string]int{}, Kinds: d.common.kinds,
	}
	for name, queue := range d.config.Queues {
		p.Queues[name] = queue.Concurrency
	}
	return p
}

// showPresence keeps the dispatcher's row in the list of workers until ctx ends.
func (d *Dispatcher) showPresence(ctx context.Context) {
	p := d.Presence()
	row := sqlgen.ShowWorkerParams{
		Worker: p.Worker, Version: p.Version, Kinds: p.Kinds, Queues: slices.Sorted(maps.Keys(p.Queues)),
	}
	for _, queue := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(p.Queues[queue]))
	}
	presence.Keep(ctx, presence.Config{
		DB: d.db, Row: row, Listening: d.config.Listening, Notice: noticeWithin, Timeout: statementTimeout,
		Last: d.common.boundHint,
	})
}

type floorStatement interface {
	ReadFloor(context.Context) (sqlgen.ReadFloorRow, error)
}

// awaitFloor returns an error if this build is too old for the schema. It retries until the database answers or ctx
// ends.
func awaitFloor(ctx context.Context, p *common, db floorStatement) error {
	var tooOld error
	_ = p.untilAnswered(ctx, "schema not read", func(bound context.Context) error {
		floor, err := db.ReadFloor(bound)
		switch {
		case err == nil, errors.Is(err, pgx.ErrNoRows):
			tooOld = release.Check(int(floor.Revision), floor.Release)
			return nil
		case pgsession.State(err) == pgsession.InsufficientPrivilege: // the login has a role that is not one of ours
			p.log.LogAttrs(ctx, slog.LevelWarn, "whether this build is too old for the schema is not known",
				slog.String("err", err.Error()))
			return nil
		}
		return err
	})
	if tooOld != nil {
		return fmt.Errorf("dispatcher: %w", tooOld)
	}
	return nil
}
