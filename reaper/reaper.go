package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// How often things are done; each wait is drawn from three quarters to five
// quarters of these, so that many processes spread.
const (
	watchInterval     = 32 * time.Second
	suspectInterval   = 10 * time.Second // between looks at listeners that were found waiting
	partitionInterval = time.Hour
	trimInterval      = time.Hour
	firstDepth        = 10 * time.Second // after the start
	dropInterval      = time.Minute      // until a partition that could not be dropped is tried again
)

// Reaper cleans up after workers. Make it with [New].
type Reaper struct {
	config  Config
	user    *pgxpool.Pool // reset on failover, together with our own
	metrics *metrics
	log     *slog.Logger

	// Set by Run.
	leases *pgxpool.Pool // two connections, with plans that do not depend on statistics
	chores *pgxpool.Pool // one connection for everything that can wait

	deadlines  deadlines
	keyed      atomic.Bool // there are keys to sweep
	scan       scan        // used by expire only, as are:
	sight      sight
	lapsesIn   float64                     // seconds, from the last look on; infinite if no lease lapses soon
	looksAhead bool                        // the last pass was cheap enough for that
	trimmed    map[string]int64            // used by trim only; see trimDays
	counted    map[string]map[string]int64 // used by trim only: jobs by outcome in days that wait to be dropped
	depth      depthGauges                 // used by sampleDepth only
	suspects   []suspect                   // used by watch only
	keysPage   int32                       // keys that one statement of sweepKeys looks at

	complaints outage.Complaints

	started atomic.Bool
	health  atomic.Pointer[error] // of the latest pass over the leases
}

// New checks config and registers the metrics. The reaper opens three connections
// of its own to the same database, so that handlers that use up pool cannot keep
// leases from being expired; pool itself is only read for its settings, and reset
// when the database turns out to be read-only after a failover.
func New(pool *pgxpool.Pool, config Config) (*Reaper, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("reaper: %w", err)
	}
	r := &Reaper{
		config:  config,
		user:    pool,
		metrics: newMetrics(config.Registerer),
		log:     config.Logger.With(slog.String("component", "reaper")),
		trimmed: map[string]int64{}, counted: map[string]map[string]int64{},
		deadlines: newDeadlines(),

		keysPage: sweepPage,
	}
	r.depth.metrics = r.metrics
	notYet := errors.New("no pass over the leases yet")
	r.health.Store(&notYet)
	return r, nil
}

// Ready returns nil while the database answers and can be written to, by the
// latest pass over the leases, and otherwise what is wrong. It is safe for
// concurrent use.
func (r *Reaper) Ready() error {
	if !r.started.Load() {
		return errors.New("not started")
	}
	return *r.health.Load()
}

// Run works until ctx ends and then returns nil; statements that are under way
// are cut off, which loses nothing. It may be called once. It returns early only
// for an error that a retry cannot mend.
func (r *Reaper) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return errors.New("reaper: Run was called before")
	}
	if err := r.openPools(ctx); err != nil {
		return fmt.Errorf("reaper: %w", err)
	}
	defer r.leases.Close()
	defer r.chores.Close()
	r.log.LogAttrs(ctx, slog.LevelInfo, "reaper started")

	var working sync.WaitGroup
	working.Go(func() { r.repeat(ctx, "expire", r.expire, backoff.Backoff{}) })
	working.Go(func() { r.repeat(ctx, "deadline", r.expireDeadlines, backoff.Backoff{}) })
	working.Go(func() { r.repeat(ctx, "keys", r.sweepKeys, backoff.Backoff{}) })
	rare := backoff.Backoff{Max: time.Minute}
	working.Go(func() { r.repeat(ctx, "partition", r.partition, rare) })
	working.Go(func() { r.repeat(ctx, "watch", r.watch, rare) })
	working.Go(func() { r.repeat(ctx, "trim", r.trim, rare) })
	// A sample reads the whole table. Not at once: a process that has just started
	// has jobs to claim, and many that start together would all read it together.
	working.Go(func() {
		r.pause(ctx, jittered(min(firstDepth, r.config.DepthInterval)))
		r.repeat(ctx, "depth", r.sampleDepth, rare)
	})
	working.Go(func() {
		r.pause(ctx, jittered(firstDepth))
		r.repeat(ctx, "measure", r.measure, rare)
	})
	working.Wait()
	r.log.LogAttrs(ctx, slog.LevelInfo, "reaper stopped")
	return nil
}

// repeat does a chore until ctx ends, each time after the wait that the chore
// asks for. It is the place where the reaper's errors are logged and waited out.
func (r *Reaper) repeat(ctx context.Context, name string, chore func(context.Context) (time.Duration, error), retry backoff.Backoff) {
	for ctx.Err() == nil {
		wait, err := chore(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pgsession.LeaveReadOnly(err, r.leases, r.chores, r.user)
			if missed, due := r.complaints.Due(complaint(name, err), time.Now()); due {
				r.log.LogAttrs(ctx, slog.LevelWarn, "chore failed", slog.String("chore", name), slog.Int("since_last_line", missed), slog.Any("err", err))
			}
			wait = retry.Next()
		default:
			retry.Reset()
		}
		r.pause(ctx, wait)
	}
}

// complaint is what an error is logged as: while the server is out of reach
// every chore fails of the same cause, which is logged once for all of them.
func complaint(chore string, err error) string {
	if pgsession.State(err) == "" {
		return "no answer"
	}
	return chore
}

func (r *Reaper) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// idle keeps work that took so long to a tenth of the time.
func (r *Reaper) idle(ctx context.Context, took time.Duration) { r.pause(ctx, budget*took) }

const budget = 9

// onChores runs statements on the connection for chores, whose turn it waits for.
func (r *Reaper) onChores(ctx context.Context, timeout time.Duration, do func(context.Context, *pgxpool.Conn, *sqlgen.Queries) error) error {
	conn, err := r.chores.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	bound, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return do(bound, conn, sqlgen.New(conn))
}

// jittered is d give or take a quarter.
func jittered(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }
