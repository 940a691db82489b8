package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

const (
	expireBatch = 500
	// A pass begins 2 to 2.5 s after the last one, so that the jobs of a dead worker wait no longer and an idle process
	// queries no more than it must. It begins after 4.5 to 5 s if the last pass looked that far ahead and saw no lease
	// that lapses: then none lapses meanwhile, except a shorter one that was taken since.
	expireInterval = 2250 * time.Millisecond
	quietInterval  = 4750 * time.Millisecond
	expireJitter   = 500 * time.Millisecond
	// A pass waits for a lease that is about to lapse, so that its job runs again that much earlier; live workers
	// extend theirs long before. The look ahead reads index entries that the next pass must read again; where reading
	// them takes long, passes do not look ahead.
	lapseMargin   = 100 * time.Millisecond // at most: processes do not all come at once
	lapseSpacing  = 250 * time.Millisecond // between passes, however many leases lapse
	lapseLookCost = 20 * time.Millisecond
)

// An expirer takes jobs away from workers whose leases have lapsed. Only one goroutine may use it.
type expirer struct {
	db        *sqlgen.Queries
	promoter  *promoter
	deadlines *deadlines // its statement looks for these, too
	sweeper   *sweeper   // sweeps only if a pass has seen keys
	listening func() bool
	metrics   *metrics
	log       *slog.Logger

	scan       scan
	outages    outageTracker
	skipped    skipped[pgtype.UUID]
	batch      int32   // jobs per statement; fewer after one that did not end in time
	lapsesIn   float64 // seconds from the last look; infinite if no lease lapses soon
	looksAhead bool    // the last pass was cheap enough to look ahead
}

// expire makes one pass over the leases.
func (e *expirer) expire(ctx context.Context) (time.Duration, error) {
	looked := e.looksAhead
	err := e.pass(ctx)
	listening := e.listening()
	e.deadlines.noteListening(listening)
	wait := expireInterval
	if looked && listening { // otherwise the passes over the deadlines find them
		wait = quietInterval
	}
	wait += rand.N(expireJitter) - expireJitter/2
	if ahead := time.Duration(min(e.lapsesIn, lookAhead.Seconds()) * float64(time.Second)); ahead < lookAhead {
		wait = min(wait, max(ahead+rand.N(lapseMargin), lapseSpacing))
	}
	return wait, err
}

func (e *expirer) pass(ctx context.Context) error {
	e.lapsesIn = math.Inf(1)
	var total time.Duration
	for _, s := range e.scan.spans(time.Now()) {
		cost, now, err := e.span(ctx, s)
		e.scan.note(s, cost, now, time.Now(), err)
		if err != nil {
			if isTimeout(err) {
				e.batch = max(e.batch/8, 1)
			}
			return err
		}
		total += cost
	}
	e.looksAhead = total < lapseLookCost
	return nil
}

// rowCost is how much of a statement's time a lapsed lease may take; the rest counts as the cost of looking for leases.
const rowCost = 100 * time.Microsecond

// span expires every lease that lapsed within the span. It returns the cost of looking for them and the database's time
// of the last look.
func (e *expirer) span(ctx context.Context, s span) (cost time.Duration, now time.Time, err error) {
	params := sqlgen.ExpireLeasesParams{
		FromLease: s.from, BeforeLease: s.before, Overlap: pgvalue.Interval(overlap),
		FromDeadline: e.deadlines.lookFrom(), Horizon: pgvalue.Interval(lookAhead),
	}
	if params.LeaseHorizon = pgvalue.Interval(0); e.looksAhead {
		params.LeaseHorizon = pgvalue.Interval(lookAhead)
	}
	began := time.Now()
	for {
		params.Skipped, params.MaxJobs = e.skipped.names(began), e.batch
		rows, last, took, err := e.take(ctx, params)
		if pgsession.MayBeRefusal(err) {
			if err = e.apart(ctx, params, err); err == nil {
				continue // with what is left
			}
			e.outages.failed = e.outages.failed || !pgsession.IsRefusal(err)
		}
		if err != nil {
			return cost + took, now, fmt.Errorf("expire leases: %w", err)
		}
		if took < statementTimeout/8 {
			e.batch = min(2*e.batch, expireBatch)
		}
		now = last
		cost += max(took-time.Duration(len(rows))*rowCost, 0)
		left := slices.DeleteFunc(slices.Clone(rows), isTaken)
		switch {
		case len(left) > 0: // cancelled jobs are closed a few at a time
			params.FromLease = slices.MinFunc(left, byLease).LeaseExpiresAt
		case len(rows) < int(params.MaxJobs):
			return cost, now, nil
		default: // everything before the last of them is expired, or locked by others
			params.FromLease = slices.MaxFunc(rows, byLease).LeaseExpiresAt
		}
	}
}

// take executes one statement. It returns the jobs that it took away, those that it left for the next one, the
// database's time, and how long the statement took.
func (e *expirer) take(ctx context.Context,
	params sqlgen.ExpireLeasesParams,
) (rows []sqlgen.ExpireLeasesRow, now time.Time, took time.Duration, err error) {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	sent := time.Now()
	e.outages.ask(sent, &params)
	rows, err = e.db.ExpireLeases(bound, params)
	took = time.Since(sent)
	cancel()
	if err != nil {
		e.outages.fail(err)
		return nil, now, took, err
	}
	now = rows[0].Now.Time // there is always a row
	if away := e.outages.answer(sent, now); away > 0 {
		e.log.LogAttrs(ctx, slog.LevelWarn, "the database was away: leases that lapsed meanwhile spend no attempts",
			slog.Duration("for", away))
	}
	e.deadlines.noteLook(now, rows[0].DeadlineInSeconds)
	e.sweeper.keyed.Store(rows[0].Keyed)
	e.lapsesIn = rows[0].LapsesInSeconds
	if !rows[0].ID.Valid {
		rows = rows[:0]
	}
	taken := slices.DeleteFunc(slices.Clone(rows), func(row sqlgen.ExpireLeasesRow) bool { return !isTaken(row) })
	e.report(ctx, taken)
	freed := map[keyName]bool{}
	for _, row := range taken {
		if row.Key != "" {
			freed[keyName{row.TenantID, row.Queue, row.Key}] = true
		}
	}
	e.promoter.moveOn(ctx, freed)
	return rows, now, took, nil
}

// apart takes the jobs of a refused statement in ever smaller parts. It leaves jobs that are refused individually alone
// for a while. If it makes no progress, it returns the refusal.
func (e *expirer) apart(ctx context.Context, params sqlgen.ExpireLeasesParams, cause error) error {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	found, err := e.db.FindLapsedLeases(bound, sqlgen.FindLapsedLeasesParams{
		FromLease: params.FromLease, BeforeLease: params.BeforeLease, Overlap: params.Overlap, Skipped: params.Skipped,
		MaxJobs: params.MaxJobs,
	})
	cancel()
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return cause
	}
	var tally refusals
	err = pgsession.Apart(found, func(part []sqlgen.FindLapsedLeasesRow) error {
		params.Among = []pgtype.UUID{} // nil would be all
		if len(part) > 0 {
			params.FromLease = part[0].LeaseExpiresAt
			params.BeforeLease = instant(part[len(part)-1].LeaseExpiresAt.Time.Add(time.Microsecond))
		}
		for _, job := range part {
			params.Among = append(params.Among, job.ID)
		}
		rows, _, _, err := e.take(ctx, params)
		tally.done += len(rows)
		return err
	}, func(job sqlgen.FindLapsedLeasesRow, err error) {
		e.skipped.add(job.ID)
		tally.add(err, slog.String("job_id", job.ID.String()))
	})
	tally.log(ctx, e.log, "jobs not taken from their workers: the database refuses them")
	if err == nil && tally.refused+tally.done == 0 {
		return cause
	}
	return err
}

// isTaken reports whether a statement has finished with the job rather than left it for the next one.
func isTaken(row sqlgen.ExpireLeasesRow) bool { return row.Status != string(outbox.Running) }

func byLease(a, b sqlgen.ExpireLeasesRow) int {
	return a.LeaseExpiresAt.Time.Compare(b.LeaseExpiresAt.Time)
}

// report counts a statement's results, and logs one line for each worker and one for each dead job.
func (e *expirer) report(ctx context.Context, rows []sqlgen.ExpireLeasesRow) {
	workers := map[string]int{}
	for _, row := range rows {
		workers[row.Worker]++
		e.metrics.expired.Inc()
		if row.Status != string(outbox.Dead) && row.Status != string(outbox.Stale) {
			continue
		}
		if row.Status == string(outbox.Dead) {
			e.metrics.dead.Inc()
		}
		e.log.LogAttrs(ctx, slog.LevelError, "job_failed",
			slog.String("event", "job_failed"), slog.String("job_id", outbox.ID(row.ID.Bytes).String()),
			slog.String("kind", row.Kind), slog.String("queue", row.Queue), slog.Int("attempt", int(row.Attempt)),
			slog.String("worker_id", row.Worker), slog.String("error_code", codes.LeaseLost),
			slog.Bool("will_retry", false), slog.String("status", row.Status))
	}
	for worker, jobs := range workers {
		e.log.LogAttrs(ctx, slog.LevelWarn, "leases lapsed", slog.String("worker_id", worker), slog.Int("jobs", jobs))
	}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgsession.State(err) == pgsession.QueryCanceled
}
