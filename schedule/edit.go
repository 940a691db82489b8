package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	// ErrExists reports that the tenant already has a schedule of that name.
	ErrExists = errors.New("there is a schedule of this name already")
	// ErrDeclared reports that a program owns the schedule and would declare it again unchanged at its next start.
	ErrDeclared = errors.New("a program declares it in its code (app.Config.Schedules): change it there")
)

// An Edit lists changes to a schedule. A nil field leaves its part unchanged, or at the default in a new schedule. A
// pointer to the zero value restores the default, and an empty Payload means {}. The fields for the schedule's jobs
// mean the same as in [Options].
type Edit struct {
	Cron  *string        // a cron expression in Zone; replaces an interval
	Zone  *string        // of the expression; UTC if never set
	Every *time.Duration // replaces an expression

	Kind        *string
	Payload     []byte
	ContentType *string

	Queue       *string
	Priority    *int
	MaxAttempts *int
	Timeout     *time.Duration
	Backoff     outbox.Backoff
	Headers     map[string]string // replaces all of them
	Hold        *bool
	Streamed    *bool
	Deadline    *time.Duration

	Key       *string
	MaxActive *int
	Ordered   *bool
	OnDeath   *outbox.DeathPolicy
	ParkAfter *time.Duration
	OnLapse   *outbox.LapsePolicy

	Missed      *Missed
	MissedLimit *int

	// Caller identifies who asks for the jobs from now on, as far as that is known. It replaces the caller in Headers.
	Caller outbox.Caller
	// Check refuses an invalid payload; nil means no check.
	Check outbox.Checker
}

// New returns a new schedule of a tenant, made from the edit's fields and defaults. Validate returns the mistakes.
func (e Edit) New(tenant outbox.ID, name string) Schedule {
	return e.on(definition{opts: Options{Tenant: tenant}}).schedule(name, e.Check)
}

// CreateIn stores a schedule in a transaction as created by a person or service and returns its next tick: from then on
// it belongs to by, until a program declares one of that name. Its error names every mistake, or is [ErrExists]. It
// exists for package operator.
func (s Schedule) CreateIn(ctx context.Context, tx pgx.Tx, by string) (next time.Time, err error) {
	p, err := s.params()
	if err != nil {
		return next, err
	}
	clock, err := sqlgen.New(tx).ReadClock(ctx)
	if err != nil {
		return next, fmt.Errorf("read the clock: %w", err)
	}
	p.OnlyNew = true
	return s.storeFor(ctx, tx, p, by, clock.Time, ErrExists)
}

// Precheck validates the payload that a schedule would have after the edit. ChangeIn validates it again while it holds
// the schedule's row: a Check that waits for others should remember what it has accepted. Without a Check, Precheck
// does nothing. It exists for package operator.
func (e Edit) Precheck(ctx context.Context, db outbox.DB, tenant outbox.ID, name string) error {
	if e.Check == nil {
		return nil
	}
	found, err := sqlgen.New(db).LockSchedules(ctx, []pgtype.UUID{pgvalue.UUID(tenant)}, []string{name})
	if err != nil {
		return fmt.Errorf("look at it: %w", err)
	}
	if len(found) == 0 || found[0].SetBy == nil {
		return nil // ChangeIn says so
	}
	_, err = e.on(definitionOf(row(found[0]))).schedule(name, e.Check).params()
	return err
}

// ChangeIn changes a schedule in a transaction and returns its next tick, and false if there is no schedule of that
// name. Its error names every mistake, or is [ErrDeclared]. It exists for package operator.
//
// The row lock makes it wait for a firing in progress, which has then moved the schedule to its next tick. If the
// timing is to change and a tick is due that no process has begun to fire, ChangeIn fires it first, because it came
// under the old timing. If the database refuses the tick's job, the tick is lost. Firings that begin meanwhile skip the
// row and later find the stored change.
func (e Edit) ChangeIn(ctx context.Context, tx pgx.Tx, tenant outbox.ID,
	name, by string,
) (next time.Time, found bool, err error) {
	q := sqlgen.New(tx)
	locked, err := q.LockSchedules(ctx, []pgtype.UUID{pgvalue.UUID(tenant)}, []string{name})
	switch {
	case err != nil:
		return next, false, fmt.Errorf("lock it: %w", err)
	case len(locked) == 0:
		return next, false, nil
	case locked[0].SetBy == nil:
		return next, true, ErrDeclared
	}
	r := row(locked[0])
	s := e.on(definitionOf(r)).schedule(name, e.Check)
	p, err := s.params()
	if err != nil {
		return next, true, err
	}
	clock, err := q.ReadClock(ctx) // later than the clock of the statement that waited for the lock
	if err != nil {
		return next, true, fmt.Errorf("read the clock: %w", err)
	}
	now := clock.Time
	if stored, err := timingOf(r); err == nil && !stored.equal(s.timing) && !r.PausedAt.Valid &&
		!r.NextAt.Time.After(now) {
		if _, _, err := fireBefore(ctx, tx, r, now); err != nil {
			return next, true, fmt.Errorf("fire it before it changes: %w", err)
		}
	}
	next, err = s.storeFor(ctx, tx, p, by, now, nil)
	return cmp.Or(next, r.NextAt.Time.UTC()), true, err
}

// storeFor stores a schedule as belonging to by and returns its next tick. If there is nothing to change, it returns
// the error that the caller passed as unchanged.
func (s Schedule) storeFor(ctx context.Context, tx pgx.Tx, p sqlgen.DeclareScheduleParams, by string, now time.Time,
	unchanged error,
) (next time.Time, err error) {
	if next, err = s.timing.next(now); err != nil {
		return next, err
	}
	p.Since, p.NextAt, p.SetBy = timestamp(now), timestamp(next), &by
	stored, err := sqlgen.New(tx).DeclareSchedule(ctx, p)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("store it: %w", err)
	case len(stored) == 0:
		return time.Time{}, unchanged
	}
	return stored[0].NextAt.Time.UTC(), sqlgen.New(tx).NotifySchedulers(ctx)
}

// definition is everything that makes up a schedule except its name.
type definition struct {
	expression, zone string
	every            time.Duration
	args             outbox.Raw
	opts             Options
	err              error
}

func definitionOf(r row) definition {
	d := definition{
		expression: pgvalue.OrZero(r.Expression), zone: pgvalue.OrZero(r.TimeZone),
		every: pgvalue.Duration(r.Every),
	}
	d.args = outbox.Raw{KindName: r.Kind, Payload: r.Payload, ContentType: r.ContentType}
	d.opts = Options{
		Queue: r.Queue, Priority: int(r.Priority), MaxAttempts: int(r.MaxAttempts),
		Timeout: pgvalue.Duration(r.Timeout), Backoff: pgvalue.Durations(r.Backoff),
		Tenant: r.TenantID.Bytes, Hold: pgvalue.OrZero(r.Hold), Streamed: pgvalue.OrZero(r.Streamed),
		Deadline: pgvalue.Duration(r.Deadline),
		Missed:   Missed(r.Missed), MissedLimit: int(r.MissedLimit),
		Key: outbox.KeyRules{
			Name: pgvalue.OrZero(r.Key), MaxActive: int(pgvalue.OrZero(r.MaxActive)),
			Ordered: pgvalue.OrZero(r.Ordered),
			OnDeath: outbox.DeathPolicy(pgvalue.OrZero(r.OnDeath)), ParkAfter: pgvalue.Duration(r.ParkAfter),
			OnLapse: outbox.LapsePolicy(pgvalue.OrZero(r.OnLapse)),
		},
	}
	_ = json.Unmarshal(r.Headers, &d.opts.Headers) // SQL may have stored values of other types; they are skipped
	return d
}

// on returns the definition with the edit applied.
func (e Edit) on(d definition) definition {
	switch {
	case e.Cron != nil && e.Every != nil:
		d.err = invalid.Field("interval", "is set besides the cron expression, and a schedule has one of them")
	case e.Zone != nil && e.Cron == nil && (e.Every != nil || d.every != 0):
		d.err = invalid.Field("zone", "is set, and a schedule of an interval has none")
	case e.Every != nil:
		d.every, d.expression, d.zone = *e.Every, "", ""
	case e.Cron != nil:
		d.expression, d.zone, d.every = *e.Cron, cmp.Or(d.zone, "UTC"), 0
	}
	set(&d.zone, e.Zone)
	if d.err == nil && e.Every == nil && d.every == 0 && d.expression == "" && e.Cron == nil {
		d.err = invalid.Field("expression", "is missing, and so is an interval: a schedule has one of them")
	}
	set(&d.args.KindName, e.Kind)
	set(&d.args.ContentType, e.ContentType)
	if d.args.Payload == nil || e.Payload != nil {
		d.args.Payload = e.Payload
	}
	if len(d.args.Payload) == 0 && cmp.Or(d.args.ContentType, "application/json") == "application/json" {
		d.args.Payload = []byte("{}")
	}
	o := &d.opts
	set(&o.Queue, e.Queue)
	set(&o.Priority, e.Priority)
	set(&o.MaxAttempts, e.MaxAttempts)
	set(&o.Timeout, e.Timeout)
	set(&o.Hold, e.Hold)
	set(&o.Streamed, e.Streamed)
	set(&o.Deadline, e.Deadline)
	set(&o.Missed, e.Missed)
	set(&o.MissedLimit, e.MissedLimit)
	set(&o.Key.Name, e.Key)
	set(&o.Key.MaxActive, e.MaxActive)
	set(&o.Key.Ordered, e.Ordered)
	set(&o.Key.OnDeath, e.OnDeath)
	set(&o.Key.ParkAfter, e.ParkAfter)
	set(&o.Key.OnLapse, e.OnLapse)
	if e.Backoff != nil {
		o.Backoff = e.Backoff
	}
	o.Headers = e.headers(o.Headers)
	return d
}

// headers returns the headers of the edited schedule. It keeps a payload from running under the name of a caller who
// did not set it.
func (e Edit) headers(stored map[string]string) map[string]string {
	headers := stored
	if e.Headers != nil {
		headers = e.Headers
	}
	if e.Caller == (outbox.Caller{}) {
		return headers
	}
	headers = maps.Clone(headers)
	for _, name := range []string{engine.HeaderService, engine.HeaderUser, engine.HeaderCorrelationID} {
		delete(headers, name)
	}
	maps.DeleteFunc(headers, func(name, _ string) bool { return engine.PosesAsService(name) })
	return engine.Caller(e.Caller).AddTo(headers)
}

func set[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

func (d definition) schedule(name string, check outbox.Checker) Schedule {
	s := Schedule{name: name, args: d.args, opts: d.opts, check: check, err: d.err}
	switch {
	case d.err != nil:
	case d.expression == "" && d.zone == "":
		s.timing, s.err = newInterval(d.every)
	default:
		s.timing, s.err = newCron(d.expression, d.zone)
	}
	return s
}
