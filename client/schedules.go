package client

import (
	"context"
	"encoding/json"
	"time"
)

// Schedule is a schedule, declared by a program or created by somebody.
type Schedule struct {
	Tenant       string    `json:"tenant"`
	Name         string    `json:"name"`
	Cron         string    `json:"cron,omitempty"` // in TimeZone; alternatively EverySeconds
	TimeZone     string    `json:"timeZone,omitempty"`
	EverySeconds float64   `json:"everySeconds,omitempty"`
	Missed       string    `json:"missed"` // skip, once or all, of which the latest MissedLimit
	MissedLimit  int       `json:"missedLimit"`
	Kind         string    `json:"kind"` // of its jobs
	Queue        string    `json:"queue"`
	Streamed     bool      `json:"streamed"`        // each change of its jobs is stored as an event
	NextAt       time.Time `json:"nextAt"`          // if in the past, it is being fired, paused, or refused
	LastAt       time.Time `json:"lastAt,omitzero"` // the latest tick for which a job was enqueued
	PausedSince  time.Time `json:"pausedSince,omitzero"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt"` // when a declaration or a person last changed it
	// SetBy is who created or last changed it; "" if a program declares it, and then only the program can change it.
	SetBy string `json:"setBy,omitempty"`
}

// ScheduleFields are the fields of a schedule. A nil field means the default in a new schedule, and no change in an
// existing one. An empty list, map or text, and 0, restore the default.
type ScheduleFields struct {
	Cron         *string  `json:"cron,omitempty"` // in TimeZone; alternatively EverySeconds
	TimeZone     *string  `json:"timeZone,omitempty"`
	EverySeconds *float64 `json:"everySeconds,omitempty"`
	Missed       *string  `json:"missed,omitempty"` // skip, once or all, of which the latest MissedLimit
	MissedLimit  *int     `json:"missedLimit,omitempty"`

	Kind            *string           `json:"kind,omitempty"` // of its jobs, like all fields below
	Payload         json.RawMessage   `json:"payload,omitempty"`
	Queue           *string           `json:"queue,omitempty"`
	Priority        *int              `json:"priority,omitempty"`
	MaxAttempts     *int              `json:"maxAttempts,omitempty"`
	TimeoutSeconds  *float64          `json:"timeoutSeconds,omitempty"`
	BackoffSeconds  []float64         `json:"backoffSeconds,omitzero"`
	DeadlineSeconds *float64          `json:"deadlineSeconds,omitempty"` // after the tick
	Hold            *bool             `json:"hold,omitempty"`
	Streamed        *bool             `json:"streamed,omitempty"`
	Headers         map[string]string `json:"headers,omitzero"` // replaces all of them

	Key              *string  `json:"key,omitempty"`
	MaxActive        *int     `json:"maxActive,omitempty"`
	Ordered          *bool    `json:"ordered,omitempty"`
	OnDeath          *string  `json:"onDeath,omitempty"`
	ParkAfterSeconds *float64 `json:"parkAfterSeconds,omitempty"`
	OnLapse          *string  `json:"onLapse,omitempty"`
}

// ScheduleNext has the time of the next tick of a schedule.
type ScheduleNext struct {
	Name   string    `json:"name"`
	NextAt time.Time `json:"nextAt"`
}

// DeletedSchedule names the deleted schedule.
type DeletedSchedule struct {
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"` // always true
}

// ScheduleState reports whether a schedule is paused.
type ScheduleState struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// ScheduleName identifies a schedule.
type ScheduleName struct {
	Tenant string // for tokens of all tenants; "" means the root tenant, or the token's own
	Name   string
}

// SchedulePage is a page of the schedules.
type SchedulePage struct {
	Schedules []Schedule `json:"schedules"`      // by name and tenant
	Next      string     `json:"next,omitempty"` // the cursor of the next page; "" if there is none
}

// SchedulePage lists schedules by name. A token of all tenants may select a tenant. A limit of 0 means 10 000, the
// maximum; the cursor "" begins with the first page.
func (c *Client) SchedulePage(ctx context.Context, ofTenant string, limit int, cursor string) (SchedulePage, error) {
	return ask[SchedulePage](ctx, c, get("/schedules", PageRequest{Limit: limit, Cursor: cursor}.add(tenant(ofTenant))))
}

// Schedules lists all schedules by name, page after page. A token of all tenants may select a tenant.
func (c *Client) Schedules(ctx context.Context, ofTenant string) (all []Schedule, err error) {
	for cursor := ""; ; {
		page, err := c.SchedulePage(ctx, ofTenant, 0, cursor)
		if err != nil {
			return nil, err
		}
		if all, cursor = append(all, page.Schedules...), page.Next; cursor == "" {
			return all, nil
		}
	}
}

type newSchedule struct {
	Name string `json:"name"`
	ScheduleFields
}

// CreateSchedule creates a schedule in addition to those that programs declare. It stays until it is deleted, or until
// a program declares one of its name, which replaces it.
func (c *Client) CreateSchedule(ctx context.Context, name ScheduleName, fields ScheduleFields) (ScheduleNext, error) {
	r := post("/schedules", newSchedule{name.Name, fields})
	r.query = tenant(name.Tenant)
	return ask[ScheduleNext](ctx, c, r.because(ctx))
}

// ChangeSchedule changes a schedule that no program declares. A new timing applies from now on, all other changes from
// the next tick on.
func (c *Client) ChangeSchedule(ctx context.Context, name ScheduleName, fields ScheduleFields) (ScheduleNext, error) {
	r := post("/schedules", fields)
	r.query = tenant(name.Tenant)
	return ask[ScheduleNext](ctx, c, r.because(ctx).segment("schedule", name.Name, "/change"))
}

// PauseSchedule stops the ticks of a schedule.
func (c *Client) PauseSchedule(ctx context.Context, name ScheduleName) (ScheduleState, error) {
	return ask[ScheduleState](ctx, c, onSchedule(ctx, name, "/pause"))
}

// ResumeSchedule lets a schedule continue with its next tick.
func (c *Client) ResumeSchedule(ctx context.Context, name ScheduleName) (ScheduleState, error) {
	return ask[ScheduleState](ctx, c, onSchedule(ctx, name, "/resume"))
}

// RunSchedule enqueues a schedule's job now, even while the schedule is paused.
func (c *Client) RunSchedule(ctx context.Context, name ScheduleName) (Accepted, error) {
	return ask[Accepted](ctx, c, onSchedule(ctx, name, "/run"))
}

// DeleteSchedule deletes a schedule; jobs that it has enqueued remain. A program that still declares it restores it at
// its next start: pause it instead.
func (c *Client) DeleteSchedule(ctx context.Context, name ScheduleName) (DeletedSchedule, error) {
	return ask[DeletedSchedule](ctx, c, onSchedule(ctx, name, "/delete"))
}

func onSchedule(ctx context.Context, name ScheduleName, act string) request {
	r := post("/schedules", nil)
	r.query = tenant(name.Tenant)
	return r.because(ctx).segment("schedule", name.Name, act)
}
