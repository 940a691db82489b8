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

// ErrScheduleNotFound says that the tenant has no schedule of the name.
var ErrScheduleNotFound = errors.New("schedule not found")

// Schedule is a schedule as it is stored; package schedule declares and fires them.
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
	NextAt      time.Time // the next tick. In the past, it is being fired, paused, or refused
	LastAt      time.Time // the latest tick that a job was enqueued for; zero before the first
	PausedSince time.Time // zero unless it is paused
	CreatedAt   time.Time
	UpdatedAt   time.Time // when a declaration or somebody changed it
	SetBy       string    // who made it or changed it last, as in the audit; "" if a program declares it
}

const maxSchedules = 10_000

// Schedules returns the schedules of all tenants by name, the first 10 000 of them.
func (o *Operator) Schedules(ctx context.Context) ([]Schedule, error) {
	return o.SchedulesOf(ctx, outbox.ID{})
}

// SchedulesOf is Schedules of one tenant alone; the zero tenant is any.
func (o *Operator) SchedulesOf(ctx context.Context, tenant outbox.ID) ([]Schedule, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListSchedules(ctx, pgvalue.UUIDOrNull(tenant), maxSchedules)
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	schedules := make([]Schedule, len(rows))
	for i, row := range rows {
		schedules[i] = Schedule{
			Name: row.Name, Tenant: row.TenantID.Bytes, Expression: row.Expression, Zone: row.TimeZone, Every: pgvalue.Duration(row.Every),
			Missed: row.Missed, MissedLimit: int(row.MissedLimit), Kind: row.Kind, Queue: row.Queue, Streamed: row.Streamed, Generation: row.Generation,
			NextAt: row.NextAt.Time, LastAt: row.LastAt.Time, PausedSince: row.PausedAt.Time,
			CreatedAt: row.CreatedAt.Time, UpdatedAt: row.UpdatedAt.Time, SetBy: row.SetBy,
		}
	}
	return schedules, nil
}

// OverdueSchedules returns up to limit schedules of a tenant or, if it is zero, of all that were to fire longer ago
// than that and are not paused, those that wait longest first. Of each it has the name, the tenant, what it enqueues
// where, and NextAt.
func (o *Operator) OverdueSchedules(ctx context.Context, tenant outbox.ID, patience time.Duration, limit int) ([]Schedule, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.OverdueSchedules(ctx, sqlgen.OverdueSchedulesParams{
		Tenant: pgvalue.UUIDOrNull(tenant), Patience: pgvalue.Interval(patience), MaxRows: int32(limit),
	})
	if err != nil {
		return nil, fmt.Errorf("list overdue schedules: %w", err)
	}
	schedules := make([]Schedule, len(rows))
	for i, row := range rows {
		schedules[i] = Schedule{Name: row.Name, Tenant: row.TenantID.Bytes, Kind: row.Kind, Queue: row.Queue, NextAt: row.NextAt.Time}
	}
	return schedules, nil
}

// PauseSchedule stops a schedule: when it returns, no tick fires any more, in any
// process. The zero tenant is [outbox.RootTenant]. Pausing what is paused changes
// nothing. It returns [ErrScheduleNotFound].
func (o *Operator) PauseSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "pause", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).PauseSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		return pausing(was, true), err
	})
}

// ResumeSchedule lets a schedule go on with its next tick from now; those of the
// pause were not missed. Schedulers notice it as a new one: see CreateSchedule. Resuming what
// is not paused changes nothing. It returns [ErrScheduleNotFound].
func (o *Operator) ResumeSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "resume", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).ResumeSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		if err != nil {
			return change{}, err
		}
		return pausing(was, false), sqlgen.New(tx).NotifySchedulers(ctx)
	})
}

// NewSchedule is a [schedule.Schedule]. This package does not import that one, and with it a parser of cron
// expressions.
type NewSchedule interface {
	Name() string
	Tenant() outbox.ID
	CreateIn(ctx context.Context, tx pgx.Tx, by string) (next time.Time, err error)
}

// ScheduleEdit is a [schedule.Edit].
type ScheduleEdit interface {
	ChangeIn(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name, by string) (next time.Time, found bool, err error)
}

// CreateSchedule stores a schedule besides those that programs declare, and returns its first tick. It is the
// actor's: it stays until it is deleted, or until a program declares one of its name, which replaces it. Schedulers
// notice it at once if they hear notifications, and else within a minute; the ticks until then are fired as late
// ones are. Its error names every mistake as [*outbox.InvalidError]s, or is schedule.ErrExists.
func (o *Operator) CreateSchedule(ctx context.Context, s NewSchedule) (next time.Time, err error) {
	err = o.onSchedule(ctx, "create", s.Tenant(), s.Name(), func(ctx context.Context, tx pgx.Tx) (change, error) {
		if next, err = s.CreateIn(ctx, tx, o.by.actor); err != nil {
			return change{}, err
		}
		after, err := describeSchedule(ctx, tx, s.Tenant(), s.Name())
		return change{found: true, acted: true, after: after}, err
	})
	return next, err
}

// ChangeSchedule changes a schedule that was made by [Operator.CreateSchedule], the API, a command or SQL, and
// returns its next tick. Another timing counts from now on: a tick that was due before has a job. Anything else counts
// from the next tick on. A change that changes nothing is not recorded. It returns [ErrScheduleNotFound],
// schedule.ErrDeclared for a schedule of a program, or every mistake as [*outbox.InvalidError]s. The zero tenant is
// [outbox.RootTenant].
func (o *Operator) ChangeSchedule(ctx context.Context, tenant outbox.ID, name string, e ScheduleEdit) (next time.Time, err error) {
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

// describeSchedule is nil if there is none of the name.
func describeSchedule(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name string) ([]byte, error) {
	described, err := sqlgen.New(tx).DescribeSchedule(ctx, pgvalue.UUID(tenant), name)
	if err != nil || len(described) == 0 {
		return nil, err
	}
	return described[0], nil
}

// DeleteSchedule forgets a schedule; jobs that it has enqueued stay. A program that
// still declares it brings it back with its next start: pause it instead. It
// returns [ErrScheduleNotFound].
func (o *Operator) DeleteSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	return o.onSchedule(ctx, "delete", tenant, name, func(ctx context.Context, tx pgx.Tx) (change, error) {
		was, err := sqlgen.New(tx).DeleteSchedule(ctx, pgvalue.UUID(orRoot(tenant)), name)
		c := pausing(was, false)
		c.after, c.acted = nil, c.found
		return c, err
	})
}

// change is what an act did to a schedule, for the audit.
type change struct {
	found, acted  bool
	before, after []byte // JSON; nil for nothing
	job           outbox.ID
}

// pausing is a change of what was paused, or not, to what is; was is empty if there
// is no such schedule.
func pausing(was []bool, paused bool) change {
	if len(was) == 0 {
		return change{}
	}
	return change{found: true, acted: was[0] != paused, before: pausedJSON(was[0]), after: pausedJSON(paused)}
}

func pausedJSON(paused bool) []byte {
	return fmt.Appendf(nil, `{"paused": %t}`, paused)
}

// onSchedule runs an act together with its row in the audit: both are there, or
// neither. What changed nothing is not recorded.
func (o *Operator) onSchedule(ctx context.Context, act string, tenant outbox.ID, name string, do func(context.Context, pgx.Tx) (change, error)) error {
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
			TenantID: pgvalue.UUID(orRoot(tenant)), JobID: pgvalue.UUIDOrNull(c.job), Target: name, Before: c.before, After: c.after,
		})
	})
	if err != nil {
		return fmt.Errorf("%s schedule %s of tenant %s: %w", act, name, orRoot(tenant), err)
	}
	return nil
}

// RunSchedule enqueues a schedule's job now, also while it is paused, and returns
// its id and the status with which it is stored: pending, or created if the schedule's
// jobs are held. It is scheduled for now, and no tick is moved. It returns
// [ErrScheduleNotFound].
func (o *Operator) RunSchedule(ctx context.Context, tenant outbox.ID, name string) (id outbox.ID, status outbox.Status, err error) {
	return o.RunScheduleOnce(ctx, tenant, name, outbox.ID{})
}

// RunScheduleOnce is [Operator.RunSchedule], and does nothing but return the first job's id if it has been called with
// this request before: a form that is sent twice runs the job once. The zero request is one that nobody repeats.
func (o *Operator) RunScheduleOnce(ctx context.Context, tenant outbox.ID, name string, request outbox.ID) (id outbox.ID, status outbox.Status, err error) {
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

// ranBefore returns the job that a request has run the schedule with. It locks the schedule first, so that of two that
// come together the second one finds the first one's.
func ranBefore(ctx context.Context, tx pgx.Tx, tenant outbox.ID, name, kind, key string) ([]pgtype.UUID, error) {
	if _, err := tx.Exec(ctx, `SELECT FROM outbox.schedules WHERE tenant_id = $1 AND name = $2 FOR UPDATE`, pgvalue.UUID(tenant), name); err != nil {
		return nil, err
	}
	return sqlgen.New(tx).FindByIdempotencyKey(ctx, sqlgen.FindByIdempotencyKeyParams{TenantID: pgvalue.UUID(tenant), Kind: kind, Key: key})
}

// jobOf is the job of a schedule, with the headers that schedule.TickOf reads.
func jobOf(row sqlgen.FindScheduleRow, tenant outbox.ID, name string) (outbox.Raw, outbox.Options) {
	headers := map[string]string{}
	_ = json.Unmarshal(row.Headers, &headers) // none, or stored by hand with other types
	headers["schedule"], headers["scheduled_for"] = name, row.Now.Time.UTC().Format(time.RFC3339Nano)
	opts := outbox.Options{
		Queue: row.Queue, Priority: int(row.Priority), MaxAttempts: int(row.MaxAttempts), Timeout: pgvalue.Duration(row.Timeout), Backoff: pgvalue.Durations(row.Backoff),
		Headers: headers, Tenant: tenant, Hold: pgvalue.OrZero(row.Hold), Streamed: pgvalue.OrZero(row.Streamed),
		Key: outbox.KeyRules{
			Name: pgvalue.OrZero(row.Key), MaxActive: int(pgvalue.OrZero(row.MaxActive)), Ordered: pgvalue.OrZero(row.Ordered),
			OnDeath: outbox.DeathPolicy(pgvalue.OrZero(row.OnDeath)), ParkAfter: pgvalue.Duration(row.ParkAfter), OnLapse: outbox.LapsePolicy(pgvalue.OrZero(row.OnLapse)),
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
	text, _ := json.Marshal(map[string]string{"status": status}) // of strings: cannot fail
	return text
}
