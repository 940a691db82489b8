package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	// A poll of the table finds schedules that timers cannot know of and that no notification has announced: schedules
	// that another process has declared, or that somebody has created, changed or resumed. The interval, give or take a
	// quarter, is well below the delay after which a tick counts as missed: see lateAfter.
	pollInterval = 40 * time.Second
	// While another process fires what is due, the scheduler looks again after this interval, in case that process
	// fails.
	yieldInterval = 250 * time.Millisecond
)

// WakePayload is the payload of notifications that a schedule was declared, created, changed or resumed.
const WakePayload = "schedules"

// Config configures a scheduler. Its zero value fires the schedules that others declared.
type Config struct {
	Schedules []Schedule // to declare

	// Wake makes the scheduler read the table. If it is nil, the scheduler relies on its poll every 40 seconds, give or
	// take a quarter. A listener sets it for notifications of WakePayload on the jobs' channel.
	Wake <-chan struct{}

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

// A Scheduler declares the program's schedules and fires all that are due. Make one with [New].
type Scheduler struct {
	declared []declaration
	user     *pgxpool.Pool // reset on failover, together with the scheduler's own
	metrics  *metrics
	log      *slog.Logger
	poll     time.Duration
	wake     <-chan struct{}

	// Made by Run.
	pool     *pgxpool.Pool // one connection
	declarer *declarer
	firer    *firer

	complaints outage.Complaints

	started atomic.Bool
	health  atomic.Pointer[error] // result of the latest look at the table
}

// New validates the schedules and registers the metrics; its error names every mistake. The scheduler opens its own
// connection to the same database. It uses pool only for its settings, and resets it when the database turns out to be
// read-only after a failover.
func New(pool *pgxpool.Pool, config Config) (*Scheduler, error) {
	declared, errs := accept(config.Schedules)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Scheduler{
		declared: declared,
		user:     pool,
		metrics:  newMetrics(config.Registerer),
		log:      config.Logger.With(slog.String("component", "scheduler")),
		poll:     pollInterval,
		wake:     config.Wake,
	}
	notYet := errors.New("no look at the schedules yet")
	s.health.Store(&notYet)
	return s, nil
}

// Ready returns nil while the database answers and the program's declarations are stored, and otherwise the reason.
// Before Run it returns an error. It is safe for concurrent use.
func (s *Scheduler) Ready() error {
	if !s.started.Load() {
		return errors.New("not started")
	}
	return *s.health.Load()
}

// Run works until ctx ends and then returns nil. A firing that is cut off takes effect either completely or not at all.
// Run may be called once. It returns early only for an error that no retry can fix.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return fmt.Errorf("scheduler: %w", backoff.ErrRanBefore)
	}
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	defer s.pool.Close()
	s.log.LogAttrs(ctx, slog.LevelInfo, "scheduler started", slog.Int("declared", len(s.declared)))
	var retry backoff.Backoff
	declared := false
	for ctx.Err() == nil {
		var declareErr error
		if !declared {
			declareErr = s.declarer.declare(ctx)
			declared = declareErr == nil
		}
		wait, err := s.round(ctx) // stored schedules fire even if declaring fails
		if err = errors.Join(declareErr, err); err != nil {
			s.note(ctx, err)
			wait = min(wait, retry.Next())
		} else {
			retry.Reset()
		}
		s.health.Store(&err)
		s.pause(ctx, wait)
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "scheduler stopped")
	return nil
}

// open opens the connection and makes the declarer and the firer.
func (s *Scheduler) open(ctx context.Context) (err error) {
	if s.pool, err = openPool(ctx, s.user); err != nil {
		return err
	}
	s.firer = &firer{
		pool: s.pool, metrics: s.metrics, log: s.log, refused: map[string]aside{},
		limits: limits{maxFirings, maxFiringTicks},
	}
	s.declarer = &declarer{declared: s.declared, pool: s.pool, firer: s.firer, log: s.log}
	return nil
}

// round fires the schedules that are due and returns how long to sleep until the next one.
func (s *Scheduler) round(ctx context.Context) (time.Duration, error) {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	rows, err := sqlgen.New(s.pool).SurveySchedules(bound, s.firer.aside())
	cancel()
	if err != nil {
		return s.poll, fmt.Errorf("survey schedules: %w", err)
	}
	wait := min(backoff.Jitter(s.poll), s.firer.asideLeft())
	if len(rows) == 0 || rows[0] >= wait.Seconds() { // in seconds: the year 9999 overflows a time.Duration
		return wait, nil
	}
	if rows[0] > 0 {
		return time.Duration(rows[0] * float64(time.Second)), nil
	}
	fired, err := s.firer.fire(ctx)
	if err != nil {
		return s.poll, err
	}
	if fired == 0 {
		return backoff.Jitter(yieldInterval), nil
	}
	return 0, nil
}

// note logs an error, but not too often during an outage.
func (s *Scheduler) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	pgsession.LeaveReadOnly(err, s.pool, s.user)
	if missed, due := s.complaints.Due("round", time.Now()); due {
		s.log.LogAttrs(ctx, slog.LevelWarn, "schedules not fired", slog.Int("since_last_line", missed),
			slog.Any("err", err))
	}
}

func (s *Scheduler) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.wake: // never, if it is nil
	}
}
