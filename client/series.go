package client

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Series is how it went, step by step.
type Series struct {
	Since       time.Time     `json:"since"`
	StepSeconds int           `json:"stepSeconds"`
	Points      []SeriesPoint `json:"points"` // one of each step, oldest first
	Marks       []SeriesMark  `json:"marks"`  // what may explain them, oldest first
}

// SeriesPoint is what was measured in one step.
type SeriesPoint struct {
	At              time.Time `json:"at"`              // where the step begins
	MeasuredSeconds float64   `json:"measuredSeconds"` // of the step: rates are counts over this. 0: nothing is known
	Waiting         int64     `json:"waiting"`         // the most of the step, as with the next two
	Running         int64     `json:"running"`
	DeadLetters     int64     `json:"deadLetters"`
	Enqueued        int64     `json:"enqueued"`
	Succeeded       int64     `json:"succeeded"`
	Unsuccessful    int64     `json:"unsuccessful"`
	Failed          int64     `json:"failed"` // attempts
	WaitP50Seconds  float64   `json:"waitP50Seconds"`
	WaitP99Seconds  float64   `json:"waitP99Seconds"`
}

// SeriesMark is a build that workers began to run, or what an operator did.
type SeriesMark struct {
	At        time.Time `json:"at"`
	Build     string    `json:"build,omitempty"`
	Actor     string    `json:"actor,omitempty"`
	Act       string    `json:"act,omitempty"`
	Queue     string    `json:"queue,omitempty"`
	Target    string    `json:"target,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	RequestID string    `json:"requestId,omitempty"`
	Acts      int       `json:"acts,omitempty"` // how many of the same request are alike
}

// SeriesFilter says of what a series is. Its zero value is everything in the last hour, by the minute.
type SeriesFilter struct {
	Tenant, Queue, Kind string
	Since, Until        time.Time
	Step                time.Duration // whole seconds, at least a minute
}

// Series tells how it went, step by step, in up to the last 14 days; a token of all tenants may name one.
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
