package client

import (
	"context"
	"time"
)

// Schedule is a schedule as a program has declared it.
type Schedule struct {
	Tenant       string    `json:"tenant"`
	Name         string    `json:"name"`
	Cron         string    `json:"cron,omitempty"` // in TimeZone; or EverySeconds
	TimeZone     string    `json:"timeZone,omitempty"`
	EverySeconds float64   `json:"everySeconds,omitempty"`
	Missed       string    `json:"missed"` // skip, once or all, of which the latest MissedLimit
	MissedLimit  int       `json:"missedLimit"`
	Kind         string    `json:"kind"` // of its jobs
	Queue        string    `json:"queue"`
	NextAt       time.Time `json:"nextAt"`          // in the past, it is being fired, paused, or refused
	LastAt       time.Time `json:"lastAt,omitzero"` // the latest tick that a job was enqueued for
	PausedSince  time.Time `json:"pausedSince,omitzero"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt"` // when a declaration changed it
}

// DeletedSchedule says which schedule is there no more.
type DeletedSchedule struct {
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"` // true
}

// ScheduleState says whether a schedule is paused.
type ScheduleState struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// ScheduleName identifies a schedule.
type ScheduleName struct {
	Tenant string // for tokens of all tenants; "" is the root tenant, or the token's own
	Name   string
}

type schedulesAnswer struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedules lists schedules by name; a token of all tenants may name one.
func (c *Client) Schedules(ctx context.Context, ofTenant string) ([]Schedule, error) {
	answer, err := ask[schedulesAnswer](ctx, c, get("/schedules", tenant(ofTenant)))
	return answer.Schedules, err
}

// PauseSchedule stops the ticks of a schedule.
func (c *Client) PauseSchedule(ctx context.Context, name ScheduleName) (ScheduleState, error) {
	return ask[ScheduleState](ctx, c, onSchedule(name, "/pause"))
}

// ResumeSchedule lets a schedule go on with its next tick.
func (c *Client) ResumeSchedule(ctx context.Context, name ScheduleName) (ScheduleState, error) {
	return ask[ScheduleState](ctx, c, onSchedule(name, "/resume"))
}

// RunSchedule enqueues a schedule's job now, also while it is paused.
func (c *Client) RunSchedule(ctx context.Context, name ScheduleName) (Accepted, error) {
	return ask[Accepted](ctx, c, onSchedule(name, "/run"))
}

// DeleteSchedule forgets a schedule; jobs that it has enqueued stay. A program that still
// declares it brings it back with its next start: pause it instead.
func (c *Client) DeleteSchedule(ctx context.Context, name ScheduleName) (DeletedSchedule, error) {
	return ask[DeletedSchedule](ctx, c, onSchedule(name, "/delete"))
}

func onSchedule(name ScheduleName, act string) request {
	r := post("/schedules", nil)
	r.query = tenant(name.Tenant)
	return r.segment("schedule", name.Name, act)
}
