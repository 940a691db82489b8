package reaper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// These are the intervals of the chores. Each wait is drawn from three quarters to five quarters of its interval, so
// that many processes spread out.
const (
	watchInterval     = 32 * time.Second
	suspectInterval   = 10 * time.Second // between looks at listeners found waiting
	partitionInterval = time.Hour
	trimInterval      = time.Hour
	firstDepth        = 10 * time.Second // after the start
	dropInterval      = time.Minute      // before retrying to drop a partition
)

// A Reaper cleans up after workers. Make one with [New].
type Reaper struct {
	config     Config
	callerPool *pgxpool.Pool // reset on failover, together with the reaper's own
	metrics    *metrics
	log        *slog.Logger
	deadlines  *deadlines
	started    atomic.Bool
	health     atomic.Pointer[error] // result of the latest pass over the leases

	// Made by Run.
	leases          *pgxpool.Pool // two connections, with plans that do not depend on statistics
	chores          chores
	expirer         *expirer
	deadlineExpirer *deadlineExpirer
	sweeper         *sweeper
	days            days
	watchdog        *watchdog
	trimmer         trimmer
	sampler         *sampler
	measurer        measurer
}

// New validates config and registers the metrics. The reaper opens three connections of its own to the same database,
// so that handlers that exhaust pool cannot keep leases from expiring. It uses pool only for its settings, and resets
// it when the database turns out to be read-only after a failover.
func New(pool *pgxpool.Pool, config Config) (*Reaper, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("reaper: %w", err)
	}
	r := &Reaper{
		config:     config,
		callerPool: pool,
		metrics:    newMetrics(config.Registerer),
		log:        config.Logger.With(slog.String("component", "reaper")),
		deadlines:  newDeadlines(),
	}
	notYet := errors.New("no pass over the leases yet")
	r.health.Store(&notYet)
	return r, nil
}

// Ready returns nil while the database answers and accepts writes, by the latest pass over the leases, and otherwise
// the reason. Before Run it returns an error. It is safe for concurrent use.
func (r *Reaper) Ready() error {
	if !r.started.Load() {
		return errors.New("not started")
	}
	return *r.health.Load()
}

// Run works until ctx ends and then returns nil; it cuts off running statements, which loses nothing. It may be called
// once. It returns early only for an error that no retry can fix.
func (r *Reaper) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return fmt.Errorf("reaper: %w", backoff.ErrRanBefore)
	}
	if err := r.open(ctx); err != nil {
		return fmt.Errorf("reaper: %w", err)
	}
	defer r.close()
	r.log.LogAttrs(ctx, slog.LevelInfo, "reaper started")

	leave := func(err error) { pgsession.LeaveReadOnly(err, r.leases, r.chores.pool, r.callerPool) }
	again := &repeater{leave: leave, log: r.log}
	var working sync.WaitGroup
	working.Go(func() { again.repeat(ctx, "expire", r.expire, backoff.Backoff{}) })
	working.Go(func() { again.repeat(ctx, "deadline", r.deadlineExpirer.expire, backoff.Backoff{}) })
	working.Go(func() { again.repeat(ctx, "keys", r.sweeper.sweep, backoff.Backoff{}) })
	rare := backoff.Backoff{Max: time.Minute}
	working.Go(func() { again.repeat(ctx, "partition", r.days.ensure, rare) })
	working.Go(func() { again.repeat(ctx, "watch", r.watchdog.watch, rare) })
	working.Go(func() { again.repeat(ctx, "trim", r.trimmer.trim, rare) })
	// A sample reads the whole table, so it does not run at once: a process that has just started has jobs to claim,
	// and many that start together would all read it together.
	working.Go(func() {
		_ = backoff.Sleep(ctx, backoff.Jitter(min(firstDepth, r.config.DepthInterval)))
		again.repeat(ctx, "depth", r.sampler.sample, rare)
	})
	working.Go(func() {
		_ = backoff.Sleep(ctx, backoff.Jitter(firstDepth))
		again.repeat(ctx, "measure", r.measurer.measure, rare)
	})
	working.Wait()
	r.log.LogAttrs(ctx, slog.LevelInfo, "reaper stopped")
	return nil
}

// expire makes a pass over the leases, and records for Ready whether it succeeded.
func (r *Reaper) expire(ctx context.Context) (time.Duration, error) {
	wait, err := r.expirer.expire(ctx)
	r.health.Store(&err)
	return wait, err
}

// open opens the connections and makes the parts. Nothing runs yet.
func (r *Reaper) open(ctx context.Context) (err error) {
	if r.leases, r.chores, err = openPools(ctx, r.callerPool); err != nil {
		return err
	}
	db := sqlgen.New(r.leases)
	p := &promoter{db: db, log: r.log, skipped: skipped[keyName]{}}
	r.sweeper = &sweeper{db: db, promoter: p, metrics: r.metrics, keysPage: sweepPage, seed: maphash.MakeSeed()}
	r.expirer = &expirer{
		db: db, promoter: p, deadlines: r.deadlines, sweeper: r.sweeper, listening: r.config.Listening, metrics: r.metrics,
		log:     r.log,
		skipped: skipped[pgtype.UUID]{}, batch: expireBatch,
	}
	r.deadlineExpirer = &deadlineExpirer{
		db: db, promoter: p, deadlines: r.deadlines, wake: r.config.Wake, listening: r.config.Listening, metrics: r.metrics,
		log:     r.log,
		skipped: skipped[pgtype.UUID]{}, batch: deadlineBatch,
	}
	r.days = days{r.chores, r.config.HistoryAhead, r.metrics, r.log}
	r.watchdog = &watchdog{chores: r.chores, metrics: r.metrics, log: r.log}
	r.trimmer = newTrimmer(r.chores, r.days, r.config, r.metrics, r.log)
	r.sampler = &sampler{r.chores, r.config.DepthInterval, depthGauges{metrics: r.metrics}}
	r.measurer = measurer{r.chores}
	return nil
}

func (r *Reaper) close() {
	r.leases.Close()
	r.chores.pool.Close()
}
