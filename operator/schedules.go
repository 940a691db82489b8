package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrScheduleNotFound reports that the tenant has no schedule of that name.
var ErrScheduleNotFound = errors.New("schedule not found")

// Schedule is a stored schedule; package schedule declares and fires schedules.
type Schedule struct {
	Name        string
	Tenant      outbox.ID
	Expression  string // cron, in Zone; "" for an interval
	Zone        string
	Every       time.Duration // 0 for a cron expression
	Missed      string        // skip, once or all, of which the latest MissedLimit
	MissedLimit int
	Kind        string
	Queue       string
	Streamed    bool      // each change of its jobs is stored as an event
	Generation  int64     // how many declarations and edits have changed it
	NextAt      time.Time // the next tick; if in the past, it is being fired, paused, or refused
	LastAt      time.Time // the latest tick for which a job was enqueued; zero before the first
	PausedSince time.Time // zero unless it is paused
	CreatedAt   time.Time
	UpdatedAt   time.Time // when a declaration or a person last changed it
	SetBy       string    // who created or last changed it, as in the audit; "" if a program declares it
}

// MaxSchedules is the maximum number of schedules in a page.
const MaxSchedules = 10_000

// Schedules returns the schedules of all tenants by name, page after page.
func (o *Operator) Schedules(ctx context.Context) ([]Schedule, error) {
	return o.SchedulesOf(ctx, outbox.ID{})
}

// SchedulesOf returns schedules as Schedules does, of a single tenant; zero means all.
func (o *Operator) SchedulesOf(ctx context.Context, tenant outbox.ID) ([]Schedule, error) {
	var all []Schedule
	for q := (SchedulesQuery{Tenant: tenant}); ; {
		page, err := o.SchedulesPage(ctx, q)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(page) < MaxSchedules {
			return all, nil
		}
		q.AfterName, q.AfterTenant = page[len(page)-1].Name, page[len(page)-1].Tenant
	}
}

// SchedulesQuery selects the schedules that [Operator.SchedulesPage] returns. The zero value means the first of all
// tenants.
type SchedulesQuery struct {
	Tenant      outbox.ID // zero means all
	AfterName   string    // the last schedule of the page before, together with AfterTenant
	AfterTenant outbox.ID
	Limit       int // at most MaxSchedules, which 0 means
}

// SchedulesPage returns schedules in the order of their names and then tenants. A page of one tenant reads its own
// rows; one of all tenants reads all schedules, which programs and people write, and sorts as many as it returns.
func (o *Operator) SchedulesPage(ctx context.Context, q SchedulesQuery) ([]Schedule, error) {
	most, err := limited("SchedulesQuery.Limit", q.Limit, MaxSchedules, MaxSchedules)
	if err := errors.Join(err, validTexts(map[string]string{"SchedulesQuery.AfterName": q.AfterName})); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListSchedules(ctx, sqlgen.ListSchedulesParams{
		Tenant: pgvalue.UUIDOrNull(q.Tenant), AfterName: q.AfterName, AfterTenant: pgvalue.UUID(q.AfterTenant),
		MaxRows: most,
	})
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	schedules := make([]Schedule, len(rows))
	for i, row := range rows {
		schedules[i] = Schedule{
			Name: row.Name, Tenant: row.TenantID.Bytes, Expression: row.Expression, Zone: row.TimeZone,
			Every:  pgvalue.Duration(row.Every),
			Missed: row.Missed, MissedLimit: int(row.MissedLimit), Kind: row.Kind, Queue: row.Queue,
			Streamed: row.Streamed, Generation: row.Generation,
			NextAt: row.NextAt.Time, LastAt: row.LastAt.Time, PausedSince: row.PausedAt.Time,
			CreatedAt: row.CreatedAt.Time, UpdatedAt: row.UpdatedAt.Time, SetBy: row.SetBy,
		}
	}
	return schedules, nil
}

// Schedule returns a schedule of a tenant, or [ErrScheduleNotFound]. The zero tenant means [outbox.RootTenant].
func (o *Operator) Schedule(ctx context.Context, tenant outbox.ID, name string) (Schedule, error) {
	if err := validTexts(map[string]string{"name": name}); err != nil {
		return Schedule{}, err
	}
	// The name without a tenant is just before the first schedule of the name.
	found, err := o.SchedulesPage(ctx, SchedulesQuery{Tenant: orRoot(tenant), AfterName: name, Limit: 1})
	switch {
	case err != nil:
		return Schedule{}, err
	case len(found) == 0 || found[0].Name != name:
		return Schedule{}, fmt.Errorf("schedule %s of tenant %s: %w", name, orRoot(tenant), ErrScheduleNotFound)
	}
	return found[0], nil
}

// OverdueSchedules returns up to limit schedules (0 means 50; at most 10 000) of a tenant or, if it is zero, of all
// that are due for longer than patience and not paused, the longest due first. It sets their name, tenant, kind, queue
// and NextAt.
func (o *Operator) OverdueSchedules(ctx context.Context, tenant outbox.ID, patience time.Duration,
	limit int,
) ([]Schedule, error) {
	most, err := limited("limit", limit, DefaultLimit, MaxSchedules)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.OverdueSchedules(ctx, sqlgen.OverdueSchedulesParams{
		Tenant: pgvalue.UUIDOrNull(tenant), Patience: pgvalue.Interval(patience), MaxRows: most,
	})
	if err != nil {
		return nil, fmt.Errorf("list overdue schedules: %w", err)
	}
	schedules := make([]Schedule, len(rows))
	for i, row := range rows {
		schedules[i] = Schedule{
			Name: row.Name, Tenant: row.TenantID.Bytes, Kind: row.Kind, Queue: row.Queue,
			NextAt: row.NextAt.Time,
		}
	}
	return schedules, nil
}

// PauseSchedule stops a schedule: after it returns, no tick fires any more, in any process. The zero tenant means
// [outbox.RootTenant]. Pausing a paused schedule changes nothing. It returns [ErrScheduleNotFound].
func (o *Operator) PauseSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "pause", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).PauseSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		return pausing(was, true), err
	})
}

// ResumeSchedule lets a schedule continue with its next tick from now; ticks during the pause do not count as missed.
// Schedulers notice it like a new one: see CreateSchedule. Resuming a schedule that is not paused changes nothing. It
// returns [ErrScheduleNotFound].
func (o *Operator) ResumeSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "resume", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).ResumeSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		if err != nil {
			return change{}, err
		}
		return pausing(was, false), sqlgen.New(tx).NotifySchedulers(ctx)
	})
}

// ScheduleSpec is a schedule to create. It is implemented by [schedule.Schedule]. This package does not import that
// one, and with it a parser of cron expressions.
type ScheduleSpec interface {
	Name() string
	Tenant() outbox.ID
	CreateIn(ctx context.Context, tx pgx.Tx, by string) (next time.Time, err error)
}

// ScheduleEdit is implemented by [schedule.Edit].
type ScheduleEdit interface {
	Precheck(ctx context.Context, db outbox.DB, tenant outbox.ID, name string) error
	ChangeIn(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name, by string) (next time.Time, found bool, err error)
}

// CreateSchedule stores a schedule in addition to those that programs declare, and returns its first tick. It belongs
// to the actor: it stays until it is deleted, or until a program declares one of its name, which replaces it.
// Schedulers notice it at once if they receive notifications, and otherwise within a minute; ticks until then are fired
// late. Its error names every mistake as [*outbox.InvalidError]s, or is schedule.ErrExists.
func (o *Operator) CreateSchedule(ctx context.Context, s ScheduleSpec) (next time.Time, err error) {
	err = o.onSchedule(ctx, "create", s.Tenant(), s.Name(), func(ctx context.Context, tx pgx.Tx) (change, error) {
		if next, err = s.CreateIn(ctx, tx, o.by.actor); err != nil {
			return change{}, err
		}
		after, err := describeSchedule(ctx, tx, s.Tenant(), s.Name())
		return change{found: true, acted: true, after: after}, err
	})
	return next, err
}

// ChangeSchedule changes a schedule that was created by [Operator.CreateSchedule], the API, a command or SQL, and
// returns its next tick. A new timing applies from now on: a tick that was due before still gets a job. Other changes
// apply from the next tick on. A change without effect is not recorded. It returns [ErrScheduleNotFound],
// schedule.ErrDeclared for a schedule of a program, or every mistake as [*outbox.InvalidError]s. The zero tenant means
// [outbox.RootTenant].
func (o *Operator) ChangeSchedule(ctx context.Context, tenant outbox.ID, name string,
	e ScheduleEdit,
) (next time.Time, err error) {
	db := outbox.DB(o.pool)
	if o.in != nil {
		db = o.in
	}
	if err := e.Precheck(ctx, db, orRoot(tenant), name); err != nil {
		return next, fmt.Errorf("change schedule %q: %w", name, err)
	}
	err = o.onSchedule(ctx, "change", tenant, name, func(ctx context.Context, tx pgx.Tx) (c change, err error) {
		if c.before, err = describeSchedule(ctx, tx, orRoot(tenant), name); err != nil || c.before == nil {
			return c, err
		}
		if next, c.found, err = e.ChangeIn(ctx, tx, orRoot(tenant), name, o.by.actor); err != nil || !c.found {
			return c, err
		}
		c.after, err = describeSchedule(ctx, tx, orRoot(tenant), name)
		c.acted = !bytes.Equal(c.before, c.after)
		return c, err
	})
	return next, err
}

// describeSchedule returns nil if there is no schedule of that name.
func describeSchedule(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name string) ([]byte, error) {
	described, err := sqlgen.New(tx).DescribeSchedule(ctx, pgvalue.UUID(tenant), name)
	if err != nil || len(described) == 0 {
		return nil, err
	}
	return described[0], nil
}

// DeleteSchedule deletes a schedule; jobs that it has enqueued remain. A program that still declares it restores it at
// its next start: pause it instead. It returns [ErrScheduleNotFound].
func (o *Operator) DeleteSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "delete", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).DeleteSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		c := pausing(was, false)
		c.after, c.acted = nil, c.found
		return c, err
	})
}

// change is the effect of an act on a schedule, for the audit.
type change struct {
	found, acted  bool
	before, after []byte // JSON; nil for nothing
	job           outbox.ID
}

// pausing returns the change from the previous paused state to the new one; was is empty if there is no such schedule.
func pausing(was []bool, paused bool) change {
	if len(was) == 0 {
		return change{}
	}
	return change{found: true, acted: was[0] != paused, before: pausedJSON(was[0]), after: pausedJSON(paused)}
}

func pausedJSON(paused bool) []byte {
	return fmt.Appendf(nil, `{"paused": %t}`, paused)
}

// onSchedule runs an act together with its row in the audit: both are stored, or neither. An act without effect is not
// recorded.
func (o *Operator) onSchedule(ctx context.Context, act string, tenant outbox.ID, name string,
	do func(context.Context, pgx.Tx) (change, error),
) error {
	if err := validTexts(map[string]string{"name": name}); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		c, err := do(ctx, tx)
		switch {
		case err != nil:
			return err
		case !c.found:
			return ErrScheduleNotFound
		case !c.acted:
			return nil
		}
		return sqlgen.New(tx).InsertAudit(ctx, sqlgen.InsertAuditParams{
			Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason, Act: "schedule." + act,
			TenantID: pgvalue.UUID(orRoot(tenant)), JobID: pgvalue.UUIDOrNull(c.job), Target: name, Before: c.before,
			After: c.after,
		})
	})
	if err != nil {
		return fmt.Errorf("%s schedule %s of tenant %s: %w", act, name, orRoot(tenant), err)
	}
	return nil
}

// RunSchedule enqueues a schedule's job now, even while the schedule is paused, and returns the job's id and stored
// status: pending, or created if the schedule's jobs are held. The job is scheduled for now, and no tick moves. It
// returns [ErrScheduleNotFound].
func (o *Operator) RunSchedule(ctx context.Context, tenant outbox.ID,
	name string,
) (id outbox.ID, status outbox.Status, err error) {
	return o.RunScheduleOnce(ctx, tenant, name, outbox.ID{})
}

// RunScheduleOnce enqueues a schedule's job as [Operator.RunSchedule] does, except that a repeated call with the same
// request only returns the first job's id: a form that is sent twice runs the job once. The zero request never counts
// as repeated.
func (o *Operator) RunScheduleOnce(ctx context.Context, tenant outbox.ID, name string,
	request outbox.ID,
) (id outbox.ID, status outbox.Status, err error) {
	err = o.onSchedule(ctx, "run", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		rows, err := sqlgen.New(tx).FindSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		if err != nil || len(rows) == 0 {
			return change{}, err
		}
		args, opts := jobOf(rows[0], orRoot(tenant), name)
		if status = outbox.Pending; opts.Hold {
			status = outbox.Created
		}
		if !request.IsZero() {
			opts.IdempotencyKey = "run " + request.String()
			before, err := ranBefore(ctx, tx, opts.Tenant, name, args.KindName, opts.IdempotencyKey)
			if err != nil {
				return change{}, err
			}
			if len(before) > 0 {
				id = before[0].Bytes
				return change{found: true}, nil
			}
		}
		id, err = outbox.Enqueue(ctx, tx, args, opts)
		return change{found: true, acted: true, job: id, after: statusJSON(string(status))}, err
	})
	return id, status, err
}

// ranBefore returns the job with which a request has already run the schedule. It locks the schedule first, so that of
// two concurrent calls the second finds the first one's job.
func ranBefore(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name, kind, key string) ([]pgtype.UUID, error) {
	if _, err := tx.Exec(ctx, `SELECT FROM outbox.schedules WHERE tenant_id = $1 AND name = $2 FOR UPDATE`,
		pgvalue.UUID(tenant), name); err != nil {
		return nil, err
	}
	return sqlgen.New(tx).FindByIdempotencyKey(ctx, sqlgen.FindByIdempotencyKeyParams{
		TenantID: pgvalue.UUID(tenant),
		Kind:     kind, Key: key,
	})
}

// jobOf returns the job of a schedule, with the headers that schedule.TickOf reads.
func jobOf(row sqlgen.FindScheduleRow, tenant outbox.ID, name string) (outbox.Raw, outbox.Options) {
	headers := map[string]string{}
	_ = json.Unmarshal(row.Headers, &headers) // there are none, or SQL has stored other types
	headers["schedule"], headers["scheduled_for"] = name, row.Now.Time.UTC().Format(time.RFC3339Nano)
	opts := outbox.Options{
		Queue: row.Queue, Priority: int(row.Priority), MaxAttempts: int(row.MaxAttempts),
		Timeout: pgvalue.Duration(row.Timeout), Backoff: pgvalue.Durations(row.Backoff),
		Headers: headers, Tenant: tenant, Hold: pgvalue.OrZero(row.Hold), Streamed: pgvalue.OrZero(row.Streamed),
		Key: outbox.KeyRules{
			Name: pgvalue.OrZero(row.Key), MaxActive: int(pgvalue.OrZero(row.MaxActive)),
			Ordered: pgvalue.OrZero(row.Ordered),
			OnDeath: outbox.DeathPolicy(pgvalue.OrZero(row.OnDeath)), ParkAfter: pgvalue.Duration(row.ParkAfter),
			OnLapse: outbox.LapsePolicy(pgvalue.OrZero(row.OnLapse)),
		},
	}
	if row.Deadline.Valid {
		opts.Deadline = row.Now.Time.Add(pgvalue.Duration(row.Deadline))
	}
	return outbox.Raw{KindName: row.Kind, Payload: row.Payload, ContentType: row.ContentType}, opts
}

func orRoot(tenant outbox.ID) outbox.ID {
	if tenant.IsZero() {
		return outbox.RootTenant
	}
	return tenant
}

func statusJSON(status string) []byte {
	text, _ := json.Marshal(map[string]string{"status": status}) // cannot fail: strings
	return text
}
