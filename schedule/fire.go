package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// lateAfter is how late a tick may be fired before it counts as missed.
const lateAfter = time.Minute

// row is a stored schedule that the transaction has locked.
type row = sqlgen.LockDueSchedulesRow

// A firing is the plan for a due schedule.
type firing struct {
	row   row
	ticks []time.Time // the ticks to enqueue a job for, in order
	next  time.Time
	ahead time.Duration // how far the clock by which it is due is ahead of the database's: 0, except in FireIn
}

// plan returns the firing of a schedule at an instant of the database's clock.
func plan(r row, now time.Time) (firing, error) {
	timing, err := timingOf(r)
	if err != nil {
		return firing{}, err
	}
	f := firing{row: r}
	from, n := r.NextAt.Time, 1
	if r.Since.Time.After(from) {
		from = r.Since.Time
	}
	if Missed(r.Missed) == All {
		n = int(r.MissedLimit)
	}
	if f.ticks, err = timing.latest(from, now, n); err != nil {
		return firing{}, err
	}
	if f.next, err = timing.next(now); err != nil {
		return firing{}, err
	}
	// A schedule created by SQL becomes due at its Since, which is no tick.
	if at := r.NextAt.Time; len(f.ticks) == 0 && r.Since.Time.Before(at) && !at.After(now) {
		if f.ticks, err = timing.stands(at, f.next); err != nil {
			return firing{}, err
		}
	}
	if len(f.ticks) > 0 && Missed(r.Missed) == Skip && now.Sub(f.ticks[0]) >= lateAfter {
		f.ticks = nil
	}
	return f.cut(max(maxFiringBytes/max(len(r.Payload), 1), 1)), nil
}

// cut returns the firing with at most so many ticks; the next round takes the others.
func (f firing) cut(most int) firing {
	if len(f.ticks) > most {
		f.ticks, f.next = f.ticks[:most], f.ticks[most]
	}
	return f
}

// These bound what one transaction enqueues, so that it finishes within its time limit.
const (
	maxFirings     = 100
	maxFiringTicks = 1000 // of one schedule
	maxFiringBytes = 16 << 20
)

// size returns how many ticks and payload bytes a firing adds to its transaction.
func (f firing) size() (ticks, bytes int) { return len(f.ticks), len(f.ticks) * len(f.row.Payload) }

func timingOf(r row) (timing, error) {
	if r.Every.Valid {
		return newInterval(pgvalue.Duration(r.Every))
	}
	return newCron(*r.Expression, *r.TimeZone) // a constraint ensures that one of them is set
}

// requests returns the jobs of a firing. The idempotency key guards a tick where the schedule's row does not: after the
// database's clock has been set back, or the schedule deleted and declared again.
func (f firing) requests() (requests []outbox.Request) {
	var headers map[string]string
	_ = json.Unmarshal(f.row.Headers, &headers) // SQL may have stored values of other types; they are skipped
	opts := outbox.Options{
		Queue: f.row.Queue, Priority: int(f.row.Priority), MaxAttempts: int(f.row.MaxAttempts),
		Timeout: pgvalue.Duration(f.row.Timeout), Backoff: pgvalue.Durations(f.row.Backoff),
		Tenant: f.row.TenantID.Bytes, Hold: pgvalue.OrZero(f.row.Hold), Streamed: pgvalue.OrZero(f.row.Streamed),
		Key: outbox.KeyRules{
			Name: pgvalue.OrZero(f.row.Key), MaxActive: int(pgvalue.OrZero(f.row.MaxActive)),
			Ordered: pgvalue.OrZero(f.row.Ordered),
			OnDeath: outbox.DeathPolicy(pgvalue.OrZero(f.row.OnDeath)), ParkAfter: pgvalue.Duration(f.row.ParkAfter),
			OnLapse: outbox.LapsePolicy(pgvalue.OrZero(f.row.OnLapse)),
		},
	}
	args := outbox.Raw{KindName: f.row.Kind, Payload: f.row.Payload, ContentType: f.row.ContentType}
	for _, at := range f.ticks {
		opts.Headers = tickHeaders(headers, Tick{Schedule: f.row.Name, At: at})
		if f.row.Deadline.Valid {
			opts.Deadline = at.Add(pgvalue.Duration(f.row.Deadline) - f.ahead)
		}
		opts.IdempotencyKey = "schedule " + f.row.Name + " " + opts.Headers[headerScheduledFor]
		requests = append(requests, outbox.Request{Args: args, Options: opts})
	}
	return requests
}

// store enqueues the jobs of firings and advances their schedules, in the transaction that has locked them.
func store(ctx context.Context, tx pgx.Tx, firings []firing) error {
	var requests []outbox.Request
	var p sqlgen.AdvanceSchedulesParams
	for _, f := range firings {
		requests = append(requests, f.requests()...)
		p.TenantIds = append(p.TenantIds, f.row.TenantID)
		p.Names = append(p.Names, f.row.Name)
		p.NextAts = append(p.NextAts, timestamp(f.next))
		var last pgtype.Timestamptz
		if n := len(f.ticks); n > 0 {
			last = timestamp(f.ticks[n-1])
		}
		p.LastAts = append(p.LastAts, last)
	}
	if _, err := outbox.EnqueueMany(ctx, tx, requests); err != nil {
		return err
	}
	return sqlgen.New(tx).AdvanceSchedules(ctx, p)
}

// A firer fires due schedules. Only one goroutine may use it.
type firer struct {
	pool    *pgxpool.Pool
	metrics *metrics
	log     *slog.Logger
	refused map[string]aside // see setAside
	turned  time.Time        // when pages that leave tenants out last began
	limits  limits           // of the next transaction
}

// limits bound what a transaction fires.
type limits struct{ firings, ticks int }

// after returns the limits that follow a transaction with these amounts: half of them if it took too long, because the
// database stores jobs slowly or their payloads take long to send, and twice the limits so far if it was quick.
func (l limits) after(tried limits, took time.Duration, err error) limits {
	switch {
	case took >= statementTimeout:
		return limits{max(min(l.firings, tried.firings)/2, 1), max(min(l.ticks, tried.ticks)/2, 1)}
	case err == nil && took < statementTimeout/4:
		return limits{min(2*l.firings, maxFirings), min(2*l.ticks, maxFiringTicks)}
	}
	return l
}

// fire fires up to maxFirings due schedules and returns how many it advanced. While more are due, it follows up once a
// second with pages that leave out the tenants that dominated the earlier pages, so that one tenant's many schedules do
// not delay those of others. Finding the others means scanning the index over everything that is due, which is why it
// is not done each time.
func (f *firer) fire(ctx context.Context) (fired int, err error) {
	passed := []string{} // not nil, which would be NULL
	for {
		n, crowd, err := f.page(ctx, passed)
		fired += n
		if err != nil || len(crowd) == 0 || len(passed) >= maxPassed ||
			len(passed) == 0 && time.Since(f.turned) < turnEvery {
			return fired, err
		}
		if len(passed) == 0 {
			f.turned = time.Now()
		}
		passed = append(passed, crowd...)
	}
}

const (
	turnEvery = time.Second // between the starts of pages that leave tenants out
	maxPassed = 10          // how many tenants may be left out; beyond that, no such page follows
)

// page fires up to maxFirings schedules. If the database refuses one of them, or another transaction has locked rows
// that one of them would store, page fires them one by one and sets that one aside.
func (f *firer) page(ctx context.Context, passed []string) (fired int, crowd []string, err error) {
	firings, more, first, err := f.some(ctx, f.limits.firings, passed)
	if more {
		crowd = crowdOf(firings)
	}
	if err == nil || first == nil || isOutage(err) {
		return len(firings), crowd, err
	}
	for range maxFirings {
		firings, _, first, err := f.some(ctx, 1, passed)
		fired += len(firings)
		switch {
		case err != nil && (isOutage(err) || first == nil):
			return fired, nil, err
		case err != nil:
			f.setAside(ctx, *first, err)
		case len(firings) == 0:
			return fired, nil, nil
		}
	}
	return fired, nil, nil
}

// crowdOf returns the tenants that account for a tenth of the firings or more.
func crowdOf(firings []firing) (tenants []string) {
	count := map[string]int{}
	for _, done := range firings {
		count[outbox.ID(done.row.TenantID.Bytes).String()]++
	}
	for tenant, n := range count {
		if 10*n >= len(firings) {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// some runs one transaction. It returns what it fired, whether more may be due, and the first schedule that it locked.
func (f *firer) some(ctx context.Context, most int,
	passed []string,
) (firings []firing, more bool, first *row, err error) {
	began, tried := time.Now(), limits{most, f.limits.ticks}
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	err = transact(bound, f.pool, func(tx pgx.Tx) error {
		rows, err := sqlgen.New(tx).LockDueSchedules(bound, sqlgen.LockDueSchedulesParams{
			SetAside: f.aside(),
			Passed:   passed, MaxSchedules: int32(most),
		})
		if err != nil {
			return fmt.Errorf("lock due schedules: %w", err)
		}
		if most == 1 { // one by one: the schedules behind locked ones get their turn, however many are locked
			if _, err := tx.Exec(bound, `SET LOCAL lock_timeout = '100ms'`); err != nil {
				return err
			}
		}
		if len(rows) > 0 {
			first = &rows[0]
		}
		firings, tried.ticks, more = f.planAll(ctx, rows)
		tried.firings, more = len(firings), more || len(rows) == most
		if len(firings) == 0 {
			return nil
		}
		if err := store(bound, tx, firings); err != nil {
			return fmt.Errorf("fire %d schedules: %w", len(firings), err)
		}
		return nil
	})
	if ctx.Err() == nil {
		f.limits = f.limits.after(tried, time.Since(began), err)
	}
	if err != nil {
		return nil, false, first, err
	}
	for _, done := range firings {
		f.report(ctx, done)
	}
	return firings, more, first, nil
}

// planAll returns the firings of schedules, as many as a transaction may fire, with the number of their ticks, and
// whether others remain due.
func (f *firer) planAll(ctx context.Context, rows []row) (firings []firing, ticks int, more bool) {
	bytes := 0
	for _, r := range rows {
		if ticks >= f.limits.ticks || bytes >= maxFiringBytes {
			return firings, ticks, true
		}
		planned, err := plan(r, r.Now.Time)
		if err != nil {
			f.setAside(ctx, r, err)
			continue
		}
		planned = planned.cut(f.limits.ticks)
		firings = append(firings, planned)
		moreTicks, moreBytes := planned.size()
		ticks, bytes = ticks+moreTicks, bytes+moreBytes
	}
	return firings, ticks, false
}

// report counts and logs a committed firing.
func (f *firer) report(ctx context.Context, done firing) {
	f.metrics.fired.Add(float64(len(done.ticks)))
	if len(done.ticks) > 0 {
		f.metrics.delay.Observe(max(done.row.Now.Time.Sub(done.ticks[len(done.ticks)-1]), 0).Seconds())
	}
	f.log.LogAttrs(ctx, slog.LevelInfo, "schedule fired", slog.String("schedule", done.row.Name),
		slog.String("kind", done.row.Kind),
		slog.Int("jobs", len(done.ticks)), slog.Time("next_at", done.next))
}

// setAside pauses a schedule that cannot be fired now: this build does not know its expression or zone, the database
// refuses its job, or a producer's transaction holds its idempotency key. It stays due, and another process may be able
// to fire it.
func (f *firer) setAside(ctx context.Context, r row, err error) {
	was := f.refused[nameOf(r)]
	next := aside{pause: asideFor}
	if pgsession.IsLockedOut(err) {
		next.pause = min(max(2*was.pause, asideLocked), asideFor)
	}
	next.until = time.Now().Add(next.pause)
	f.refused[nameOf(r)] = next
	f.reportRefused(ctx, r, err)
}

func (f *firer) reportRefused(ctx context.Context, r row, err error) {
	f.metrics.refused.Inc()
	f.log.LogAttrs(ctx, slog.LevelError, "schedule not fired", slog.String("schedule", r.Name),
		slog.String("kind", r.Kind), slog.Any("err", err))
}

// aside is a paused schedule.
type aside struct {
	until time.Time
	pause time.Duration // the latest pause, which grows while the rows that the schedule would store are locked
}

const (
	asideFor    = 20 * time.Second // well below lateAfter: a late tick is tried again before it is missed
	asideLocked = 5 * time.Second  // the first pause of a locked schedule; each further one is twice as long
)

// aside returns the schedules that are paused now, never nil, which would be NULL. It forgets the length of a
// schedule's pauses some time after the schedule has fired.
func (f *firer) aside() []string {
	names := []string{}
	for name, aside := range f.refused {
		switch since := time.Since(aside.until); {
		case since < 0:
			names = append(names, name)
		case since > 2*asideFor:
			delete(f.refused, name)
		}
	}
	return names
}

// asideLeft returns how long it takes until a paused schedule is tried again, or the longest Duration if none is
// paused.
func (f *firer) asideLeft() time.Duration {
	left := time.Duration(math.MaxInt64)
	for _, aside := range f.refused {
		if until := time.Until(aside.until); until > 0 {
			left = min(left, until)
		}
	}
	return left
}

// nameOf returns what the queries compare: tenant and name.
func nameOf(r row) string { return outbox.ID(r.TenantID.Bytes).String() + " " + r.Name }

// isOutage reports whether a statement failed because of the connection, the server or our rights, rather than because
// of the data to be stored or a lock on it.
func isOutage(err error) bool {
	if _, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return false
	}
	return !pgsession.RefusesTheRow(err)
}

func timestamp(at time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: at, Valid: true} }
