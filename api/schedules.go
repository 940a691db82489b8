package api

import (
	"context"
	"time"
)

// Schedule is a schedule as a program has declared it.
type Schedule struct {
	Tenant       string    `json:"tenant" format:"uuid"`
	Name         string    `json:"name"`
	Cron         string    `json:"cron,omitempty" doc:"When it ticks, in timeZone; or"`
	TimeZone     string    `json:"timeZone,omitempty"`
	EverySeconds float64   `json:"everySeconds,omitempty" doc:"how often"`
	Missed       string    `json:"missed" enum:"skip,once,all" doc:"What becomes of ticks that nobody fired"`
	MissedLimit  int       `json:"missedLimit" doc:"How many of them, the latest"`
	Kind         string    `json:"kind" doc:"Of its jobs"`
	Queue        string    `json:"queue"`
	NextAt       time.Time `json:"nextAt" doc:"The next tick. In the past, it is being fired, paused, or refused"`
	LastAt       time.Time `json:"lastAt,omitzero" doc:"The latest tick that a job was enqueued for"`
	PausedSince  time.Time `json:"pausedSince,omitzero"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt" doc:"When a declaration changed it"`
}

type schedulesOutput struct {
	Body struct {
		Schedules []Schedule `json:"schedules" nullable:"false" doc:"By name, the first 10 000"`
	}
}

func (s *server) listSchedules(ctx context.Context, in *OfTenant) (*schedulesOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	schedules, err := s.operator.SchedulesOf(ctx, tenant)
	if err != nil {
		return nil, err
	}
	out := &schedulesOutput{}
	out.Body.Schedules = make([]Schedule, len(schedules))
	for i, sc := range schedules {
		out.Body.Schedules[i] = Schedule{
			Tenant: sc.Tenant.String(), Name: sc.Name, Cron: sc.Expression, TimeZone: sc.Zone, EverySeconds: sc.Every.Seconds(),
			Missed: sc.Missed, MissedLimit: sc.MissedLimit, Kind: sc.Kind, Queue: sc.Queue,
			NextAt: utc(sc.NextAt), LastAt: utc(sc.LastAt), PausedSince: utc(sc.PausedSince), CreatedAt: utc(sc.CreatedAt), UpdatedAt: utc(sc.UpdatedAt),
		}
	}
	return out, nil
}

type scheduleInput struct {
	OfTenant
	Name string `path:"name" maxLength:"128" doc:"Of the schedule"`
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
	set := s.by(ctx).ResumeSchedule
	if paused {
		set = s.by(ctx).PauseSchedule
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

// deleteSchedule leaves the jobs that the schedule has enqueued.
func (s *server) deleteSchedule(ctx context.Context, in *scheduleInput) (*deletedOutput, error) {
	tenant, err := in.oneTenant(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.by(ctx).DeleteSchedule(ctx, tenant, in.Name); err != nil {
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
	id, status, err := s.by(ctx).RunSchedule(ctx, tenant, in.Name)
	if err != nil {
		return nil, err
	}
	return &enqueueOutput{
		Location: "../../jobs/" + id.String(), // from /schedules/{name}/run
		Body:     Accepted{ID: id.String(), Status: string(status)},
	}, nil
}
