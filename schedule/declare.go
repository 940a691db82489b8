package schedule

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// A declarer stores the program's schedules. Only one goroutine may use it.
type declarer struct {
	declared []declaration
	pool     *pgxpool.Pool
	firer    *firer // reports schedules that were fired first
	log      *slog.Logger
}

// declare stores the program's schedules in one transaction.
//
// Two processes may declare at once, and others fire meanwhile. The rows are locked in one order, so that no two
// declarations deadlock; a firing skips locked rows. If a schedule's timing is about to change and it is due by the old
// one, it is fired first: the declaration in effect at the time of a tick governs that tick. If the database refuses
// its job, that tick is lost, because the change may be what repairs the schedule and must not wait.
//
// A schedule that somebody created by the API, a command or SQL becomes the program's: deployed code takes effect
// whatever the database had before.
func (d *declarer) declare(ctx context.Context) error {
	if len(d.declared) == 0 {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, statementTimeout+time.Duration(len(d.declared))*declareTimeout)
	defer cancel()
	var fired []firing
	var changed []change
	var rows []row
	err := transact(bound, d.pool, func(tx pgx.Tx) (err error) {
		var now time.Time
		if now, rows, err = d.lock(bound, tx); err != nil {
			return err
		}
		if fired, err = d.fireBeforeChange(bound, tx, now, rows); err != nil {
			return err
		}
		changed, err = d.store(bound, tx, now)
		return err
	})
	if err != nil {
		return err
	}
	for _, f := range fired {
		d.firer.report(ctx, f)
	}
	for _, c := range changed {
		d.noteTakeover(ctx, c, rows)
		d.log.LogAttrs(ctx, slog.LevelInfo, "schedule declared", slog.String("schedule", c.declared.params.Name),
			slog.String("timing", c.declared.schedule.timing.String()), slog.Int64("generation", c.stored.Generation),
			slog.Time("next_at", c.stored.NextAt.Time))
	}
	return nil
}

// noteTakeover logs that a declaration has replaced a schedule that somebody had created.
func (d *declarer) noteTakeover(ctx context.Context, c change, before []row) {
	for _, r := range before {
		if r.SetBy != nil && r.TenantID == c.declared.params.TenantID && r.Name == c.declared.params.Name {
			d.log.LogAttrs(ctx, slog.LevelWarn,
				"this program declares a schedule that somebody else had made, and replaces it",
				slog.String("schedule", r.Name), slog.String("made_by", *r.SetBy))
		}
	}
}

// declareTimeout is the time that each declaration adds to the transaction's limit.
const declareTimeout = 20 * time.Millisecond

// A change is a declaration that differs from what is stored.
type change struct {
	declared declaration
	stored   sqlgen.DeclareScheduleRow
}

// lock locks the stored rows of the declared schedules and only then reads the clock, because it may have waited for
// another process that fires or declares.
func (d *declarer) lock(ctx context.Context, tx pgx.Tx) (now time.Time, rows []row, err error) {
	q := sqlgen.New(tx)
	var tenants []pgtype.UUID
	var names []string
	for _, own := range d.declared {
		tenants, names = append(tenants, own.params.TenantID), append(names, own.params.Name)
	}
	locked, err := q.LockSchedules(ctx, tenants, names)
	if err != nil {
		return now, nil, fmt.Errorf("lock %d schedules: %w", len(d.declared), err)
	}
	clock, err := q.ReadClock(ctx)
	if err != nil {
		return now, nil, fmt.Errorf("read the clock: %w", err)
	}
	for _, l := range locked {
		r := row(l)
		r.Now = clock
		rows = append(rows, r)
	}
	return clock.Time, rows, nil
}

func (d *declarer) fireBeforeChange(ctx context.Context, tx pgx.Tx, now time.Time,
	rows []row,
) (firings []firing, err error) {
	for _, r := range rows {
		if r.PausedAt.Valid || r.NextAt.Time.After(now) || !d.movesTicks(r) {
			continue
		}
		fired, refused, err := fireBefore(ctx, tx, r, now)
		if err != nil {
			return nil, fmt.Errorf("fire schedule %s before it changes: %w", r.Name, err)
		}
		if refused != nil {
			d.firer.reportRefused(ctx, r, refused)
		}
		firings = append(firings, fired...)
	}
	return firings, nil
}

// fireBefore fires a due schedule that is about to change, in as many parts as it takes, because the change overwrites
// the time of the next tick. If the schedule cannot be fired, fireBefore stores nothing more and returns the reason as
// refused, and the transaction can go on. If another transaction has locked what it needs, it returns an error: the
// schedule can be fired later.
func fireBefore(ctx context.Context, tx pgx.Tx, r row, now time.Time) (fired []firing, refused, err error) {
	for !r.NextAt.Time.After(now) {
		f, err := plan(r, now)
		if err != nil {
			return fired, err, nil
		}
		err = pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { return store(ctx, inner, []firing{f}) })
		switch {
		case err != nil && !isOutage(err) && !pgsession.IsLockedOut(err):
			return fired, err, nil
		case err != nil:
			return nil, nil, err
		}
		fired, r.NextAt = append(fired, f), timestamp(f.next)
	}
	return fired, nil, nil
}

func (d *declarer) store(ctx context.Context, tx pgx.Tx, now time.Time) (changed []change, err error) {
	q := sqlgen.New(tx)
	for _, own := range d.declared {
		next, err := own.schedule.timing.next(now)
		if err != nil {
			return nil, err
		}
		p := own.params
		p.Since, p.NextAt = timestamp(now), timestamp(next)
		stored, err := q.DeclareSchedule(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("declare schedule %s: %w", p.Name, err)
		}
		for _, r := range stored {
			changed = append(changed, change{own, r})
		}
	}
	if len(changed) > 0 {
		if err := q.NotifySchedulers(ctx); err != nil {
			return nil, fmt.Errorf("notify schedulers: %w", err)
		}
	}
	return changed, nil
}

// movesTicks reports whether the declared timing differs from the stored one.
func (d *declarer) movesTicks(r row) bool {
	stored, err := timingOf(r)
	for _, own := range d.declared {
		if own.params.TenantID == r.TenantID && own.params.Name == r.Name {
			return err != nil || !own.schedule.timing.equal(stored)
		}
	}
	return false
}

// A declaration is a schedule that passed validation.
type declaration struct {
	schedule Schedule
	params   sqlgen.DeclareScheduleParams
}

// accept returns the declarations in the order in which they are locked. The errors name every mistake, including two
// schedules of the same name.
func accept(schedules []Schedule) (declared []declaration, errs []error) {
	for _, s := range schedules {
		p, err := s.params()
		if err != nil {
			errs = append(errs, s.named(err))
			continue
		}
		if slices.ContainsFunc(declared, func(d declaration) bool {
			return d.params.Name == p.Name && d.params.TenantID == p.TenantID
		}) {
			errs = append(errs, fmt.Errorf("schedule %q: %w", s.name,
				invalid.Field("name", "is that of two schedules")))
			continue
		}
		declared = append(declared, declaration{s, p})
	}
	slices.SortFunc(declared, func(a, b declaration) int {
		return cmp.Or(bytes.Compare(a.params.TenantID.Bytes[:], b.params.TenantID.Bytes[:]),
			cmp.Compare(a.params.Name, b.params.Name))
	})
	return declared, errs
}
