package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Schedule is a schedule, declared by a program or created by somebody.
type Schedule struct {
	Tenant       string    `json:"tenant" format:"uuid"`
	Name         string    `json:"name"`
	Cron         string    `json:"cron,omitempty" doc:"Cron expression of the ticks, in timeZone; omitted with everySeconds"`
	TimeZone     string    `json:"timeZone,omitempty"`
	EverySeconds float64   `json:"everySeconds,omitempty" doc:"Interval of the ticks; omitted with cron"`
	Missed       string    `json:"missed" enum:"skip,once,all" doc:"What happens to missed ticks"`
	MissedLimit  int       `json:"missedLimit" doc:"With all: how many of the latest missed ticks get a job"`
	Kind         string    `json:"kind" doc:"Kind of its jobs"`
	Queue        string    `json:"queue"`
	Streamed     bool      `json:"streamed" doc:"Whether each change of its jobs is stored as an event"`
	NextAt       time.Time `json:"nextAt" doc:"The next tick. If it is in the past, the tick is being fired or was refused, or the schedule is paused"`
	LastAt       time.Time `json:"lastAt,omitzero" doc:"The latest tick for which a job was enqueued"`
	PausedSince  time.Time `json:"pausedSince,omitzero"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt" doc:"When a declaration or an act changed it"`
	SetBy        string    `json:"setBy,omitempty" doc:"The actor who created or last changed it, as in the audit. Omitted if a program declares the schedule, which only that program can change"`
}

type (
	schedulesInput struct {
		OfTenant
		Limit  int    `query:"limit" minimum:"1" maximum:"10000" default:"10000" doc:"Schedules per page"`
		Cursor string `query:"cursor" maxLength:"900" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
	}
	schedulesOutput struct {
		Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
		Body struct {
			Schedules []Schedule `json:"schedules" nullable:"false" doc:"Ordered by name and tenant"`
			Next      string     `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last"`
		}
	}
)

func (s *server) listSchedules(ctx context.Context, in *schedulesInput) (*schedulesOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	after, err := fromCursor(in.Cursor, readScheduleCursor)
	if err != nil {
		return nil, err
	}
	schedules, err := s.operator.SchedulesPage(ctx, operator.SchedulesQuery{
		Tenant: tenant, AfterName: after.name, AfterTenant: after.tenant, Limit: in.Limit,
	})
	if err != nil {
		return nil, err
	}
	out := &schedulesOutput{}
	if len(schedules) == in.Limit {
		last := schedules[in.Limit-1]
		out.Body.Next = makeScheduleCursor(schedulePlace{last.Name, last.Tenant})
		out.Link = nextLink(in.Limit, out.Body.Next, map[string]string{"tenant": in.Tenant})
	}
	out.Body.Schedules = make([]Schedule, len(schedules))
	for i, sc := range schedules {
		out.Body.Schedules[i] = Schedule{
			Tenant: sc.Tenant.String(), Name: sc.Name, Cron: sc.Expression, TimeZone: sc.Zone,
			EverySeconds: sc.Every.Seconds(),
			Missed:       sc.Missed, MissedLimit: sc.MissedLimit, Kind: sc.Kind, Queue: sc.Queue, Streamed: sc.Streamed,
			NextAt: utc(sc.NextAt), LastAt: utc(sc.LastAt), PausedSince: utc(sc.PausedSince),
			CreatedAt: utc(sc.CreatedAt), UpdatedAt: utc(sc.UpdatedAt),
			SetBy: sc.SetBy,
		}
	}
	return out, nil
}

// ScheduleFields are the fields of a schedule. An omitted field means the default in a new schedule, and no change in
// an existing one.
type ScheduleFields struct {
	Cron         *string  `json:"cron,omitempty" maxLength:"500" nullable:"false" doc:"Cron expression: minute, hour, day of month, month and day of week, in timeZone; instead of everySeconds" example:"0 7 * * 1-5"`
	TimeZone     *string  `json:"timeZone,omitempty" maxLength:"64" nullable:"false" doc:"Name of an IANA time zone; UTC if omitted with a first cron" example:"Europe/Berlin"`
	EverySeconds *float64 `json:"everySeconds,omitempty" minimum:"1" maximum:"315360000" nullable:"false" doc:"Interval of the ticks, in whole milliseconds; instead of cron"`
	Missed       *string  `json:"missed,omitempty" enum:"skip,once,all" nullable:"false" doc:"Ticks that no process fired in time: skip enqueues no job, once a job for the latest, all a job for each of the latest missedLimit"`
	MissedLimit  *int     `json:"missedLimit,omitempty" minimum:"1" maximum:"1000" nullable:"false"`

	Kind            *string           `json:"kind,omitempty" minLength:"1" maxLength:"128" nullable:"false" doc:"Kind of its jobs" example:"report.send"`
	Payload         json.RawMessage   `json:"payload,omitempty" doc:"Payload of its jobs; {} if omitted in a new schedule"`
	Queue           *string           `json:"queue,omitempty" maxLength:"128" nullable:"false"`
	Priority        *int              `json:"priority,omitempty" minimum:"-32768" maximum:"32767" nullable:"false"`
	MaxAttempts     *int              `json:"maxAttempts,omitempty" minimum:"1" maximum:"32767" nullable:"false"`
	TimeoutSeconds  *float64          `json:"timeoutSeconds,omitempty" minimum:"0" maximum:"3153600000" nullable:"false" doc:"Timeout of one attempt; 0 is the worker's"`
	BackoffSeconds  []float64         `json:"backoffSeconds,omitempty" maxItems:"64" nullable:"false" doc:"As for a job; [] is the worker's backoff"`
	DeadlineSeconds *float64          `json:"deadlineSeconds,omitempty" minimum:"0" maximum:"3153600000" nullable:"false" doc:"A job expires this long after its tick; 0 is never"`
	Hold            *bool             `json:"hold,omitempty" nullable:"false" doc:"Its jobs do not run before they are released"`
	Streamed        *bool             `json:"streamed,omitempty" nullable:"false" doc:"Each change of its jobs is stored as an event"`
	Headers         map[string]string `json:"headers,omitempty" nullable:"false" doc:"All headers of its jobs. caller-service and caller-user name the last caller"`

	Key              *string  `json:"key,omitempty" maxLength:"512" nullable:"false" doc:"As for a job; \"\" is none"`
	MaxActive        *int     `json:"maxActive,omitempty" minimum:"1" maximum:"1000" nullable:"false"`
	Ordered          *bool    `json:"ordered,omitempty" nullable:"false"`
	OnDeath          *string  `json:"onDeath,omitempty" enum:",skip,park" nullable:"false"`
	ParkAfterSeconds *float64 `json:"parkAfterSeconds,omitempty" minimum:"0" maximum:"3153600000" nullable:"false"`
	OnLapse          *string  `json:"onLapse,omitempty" enum:",fail-stale,block" nullable:"false"`
}

// edit returns the changes as the caller's, checked against the kind's schema.
func (s *server) edit(ctx context.Context, f ScheduleFields) (schedule.Edit, *Problem) {
	caller := callerIn(ctx)
	if p := checkService(ctx, f.Headers); p != nil {
		return schedule.Edit{}, p
	}
	e := schedule.Edit{
		Cron: f.Cron, Zone: f.TimeZone, Every: secondsOrNil(f.EverySeconds), Missed: as[schedule.Missed](f.Missed),
		MissedLimit: f.MissedLimit,
		Kind:        f.Kind, Payload: f.Payload, Queue: f.Queue, Priority: f.Priority, MaxAttempts: f.MaxAttempts,
		Timeout:  secondsOrNil(f.TimeoutSeconds),
		Deadline: secondsOrNil(f.DeadlineSeconds), Hold: f.Hold, Streamed: f.Streamed, Headers: f.Headers,
		Key: f.Key, MaxActive: f.MaxActive, Ordered: f.Ordered, OnDeath: as[outbox.DeathPolicy](f.OnDeath),
		ParkAfter: secondsOrNil(f.ParkAfterSeconds), OnLapse: as[outbox.LapsePolicy](f.OnLapse),
		Caller: outbox.Caller{Service: caller.Service, User: caller.User}, Check: once(s.checker(ctx)),
	}
	if e.Payload != nil { // the stored one may be of another type, which nothing checks
		e.ContentType = new("application/json")
	}
	if f.BackoffSeconds != nil {
		e.Backoff = append(outbox.Backoff{}, backoff(f.BackoffSeconds)...)
	}
	return e, nil
}

func secondsOrNil(n *float64) *time.Duration {
	if n == nil {
		return nil
	}
	return new(pgvalue.Seconds(*n))
}

// as converts a text to its own type.
func as[T ~string](text *string) *T {
	if text == nil {
		return nil
	}
	return new(T(*text))
}

type createScheduleInput struct {
	OfTenant
	ForAudit
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"128" doc:"Unique within its tenant" example:"weekday-report"`
		Kind string `json:"kind" minLength:"1" maxLength:"128" doc:"Kind of its jobs" example:"report.send"`
		ScheduleFields
	}
}

type changeScheduleInput struct {
	OfTenant
	ForAudit
	Name string `path:"name" maxLength:"128" doc:"Name of the schedule"`
	Body ScheduleFields
}

// scheduledOutput tells when a created or changed schedule ticks next.
type scheduledOutput struct {
	Body struct {
		Name   string    `json:"name"`
		NextAt time.Time `json:"nextAt" doc:"The next tick"`
	}
}

func scheduled(name string, next time.Time) *scheduledOutput {
	out := &scheduledOutput{}
	out.Body.Name, out.Body.NextAt = name, utc(next)
	return out
}

// createSchedule creates a schedule that belongs to no program.
func (s *server) createSchedule(ctx context.Context, in *createScheduleInput) (*scheduledOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	fields := in.Body.ScheduleFields
	fields.Kind = &in.Body.Kind
	edit, p := s.edit(ctx, fields)
	if p != nil {
		return nil, p
	}
	created := edit.New(tenant, in.Body.Name)
	if err := created.Validate(); err != nil { // the validation of its payload may wait: not in the transaction
		return nil, err
	}
	next, err := s.by(ctx).Because(in.Reason).CreateSchedule(ctx, created)
	if err != nil {
		return nil, err
	}
	return scheduled(in.Body.Name, next), nil
}

func (s *server) changeSchedule(ctx context.Context, in *changeScheduleInput) (*scheduledOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	edit, p := s.edit(ctx, in.Body)
	if p != nil {
		return nil, p
	}
	next, err := s.by(ctx).Because(in.Reason).ChangeSchedule(ctx, tenant, in.Name, edit)
	if err != nil {
		return nil, err
	}
	return scheduled(in.Name, next), nil
}

type scheduleInput struct {
	OfTenant
	ForAudit
	Name string `path:"name" maxLength:"128" doc:"Name of the schedule"`
}

type scheduleOutput struct {
	Body struct {
		Name   string `json:"name"`
		Paused bool   `json:"paused"`
	}
}

func (s *server) pauseSchedule(ctx context.Context, in *scheduleInput) (*scheduleOutput, error) {
	return s.setSchedulePaused(ctx, in, true)
}

func (s *server) resumeSchedule(ctx context.Context, in *scheduleInput) (*scheduleOutput, error) {
	return s.setSchedulePaused(ctx, in, false)
}

func (s *server) setSchedulePaused(ctx context.Context, in *scheduleInput, paused bool) (*scheduleOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	by := s.by(ctx).Because(in.Reason)
	set := by.ResumeSchedule
	if paused {
		set = by.PauseSchedule
	}
	if err := set(ctx, tenant, in.Name); err != nil {
		return nil, err
	}
	out := &scheduleOutput{}
	out.Body.Name, out.Body.Paused = in.Name, paused
	return out, nil
}

type deletedOutput struct {
	Body struct {
		Name    string `json:"name"`
		Deleted bool   `json:"deleted"`
	}
}

// deleteSchedule deletes a schedule; the jobs that it has enqueued remain.
func (s *server) deleteSchedule(ctx context.Context, in *scheduleInput) (*deletedOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.by(ctx).Because(in.Reason).DeleteSchedule(ctx, tenant, in.Name); err != nil {
		return nil, err
	}
	out := &deletedOutput{}
	out.Body.Name, out.Body.Deleted = in.Name, true
	return out, nil
}

// runSchedule enqueues the schedule's job now.
func (s *server) runSchedule(ctx context.Context, in *scheduleInput) (*enqueueOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	id, status, err := s.by(ctx).Because(in.Reason).RunSchedule(ctx, tenant, in.Name)
	if err != nil {
		return nil, err
	}
	return &enqueueOutput{
		Location: "../../jobs/" + id.String(), // from /schedules/{name}/run
		Body:     Accepted{ID: id.String(), Status: string(status)},
	}, nil
}
