package client

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Series is the history step by step.
type Series struct {
	Since       time.Time     `json:"since"`
	StepSeconds int           `json:"stepSeconds"`
	Points      []SeriesPoint `json:"points"` // one for each step, oldest first
	Marks       []SeriesMark  `json:"marks"`  // events that may explain them, oldest first
}

// SeriesPoint contains the measurements of one step.
type SeriesPoint struct {
	At              time.Time `json:"at"`              // beginning of the step
	MeasuredSeconds float64   `json:"measuredSeconds"` // of the step, the base of rates. 0 if nothing is known
	Waiting         int64     `json:"waiting"`         // maximum in the step, like the next two
	Running         int64     `json:"running"`
	DeadLetters     int64     `json:"deadLetters"`
	Enqueued        int64     `json:"enqueued"`
	Succeeded       int64     `json:"succeeded"`
	Unsuccessful    int64     `json:"unsuccessful"`
	Failed          int64     `json:"failed"` // attempts
	WaitP50Seconds  float64   `json:"waitP50Seconds"`
	WaitP99Seconds  float64   `json:"waitP99Seconds"`
}

// SeriesMark is a build that workers began to run, or an act of an operator.
type SeriesMark struct {
	At        time.Time `json:"at"`
	Build     string    `json:"build,omitempty"`
	Actor     string    `json:"actor,omitempty"`
	Act       string    `json:"act,omitempty"`
	Queue     string    `json:"queue,omitempty"`
	Target    string    `json:"target,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	RequestID string    `json:"requestId,omitempty"`
	Acts      int       `json:"acts,omitempty"` // number of equal acts of the same request
}

// SeriesFilter selects a series. Its zero value selects everything in the last hour, by the minute.
type SeriesFilter struct {
	Tenant, Queue, Kind string
	Since, Until        time.Time
	Step                time.Duration // whole seconds, at least a minute
}

// Series returns the history step by step, in up to the last 14 days. A token of all tenants may select a tenant.
func (c *Client) Series(ctx context.Context, f SeriesFilter) (Series, error) {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("tenant", f.Tenant)
	set("queue", f.Queue)
	set("kind", f.Kind)
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			set(name, at.Format(time.RFC3339Nano))
		}
	}
	if f.Step != 0 {
		set("step", strconv.Itoa(int(f.Step/time.Second)))
	}
	return ask[Series](ctx, c, get("/series", q))
}
