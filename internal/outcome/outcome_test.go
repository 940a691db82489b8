package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

type teapot struct{}

func (teapot) Error() string { return "short and stout" }
func (teapot) Code() string  { return "418" }

func TestDecide(t *testing.T) {
	boom := errors.New("boom")
	policy := outcome.Policy{Backoff: dispatcher.Waits(7 * time.Second)}
	first := func() *outbox.Claimed { return &outbox.Claimed{Epoch: 1, Attempt: 1, MaxAttempts: 3} }
	last := func() *outbox.Claimed { return &outbox.Claimed{Epoch: 1, Attempt: 3, MaxAttempts: 3} }
	completed := func(job *outbox.Claimed) *outbox.Claimed {
		if err := job.Complete(t.Context(), &oneRow{}); err != nil {
			t.Fatal(err)
		}
		return job
	}
	panicked := &outcome.Panicked{Value: "boom", Stack: "goroutine 1"}

	for behaviour, c := range map[string]struct {
		job        *outbox.Claimed
		err, cause error
		want       outcome.Outcome
	}{
		"nil succeeds":                             {first(), nil, nil, outcome.Outcome{Status: outbox.Succeeded}},
		"nil succeeds on the last attempt":         {last(), nil, nil, outcome.Outcome{Status: outbox.Succeeded}},
		"nil succeeds although the time was up":    {first(), nil, dispatcher.ErrTimeout, outcome.Outcome{Status: outbox.Succeeded}},
		"nil succeeds although it was cut off":     {first(), nil, dispatcher.ErrShutdown, outcome.Outcome{Status: outbox.Succeeded}},
		"nil succeeds although the lease was lost": {first(), nil, outbox.ErrLeaseLost, outcome.Outcome{Status: outbox.Succeeded}},

		"an error waits as the policy says": {
			first(), boom, nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
		"a job's own backoff comes before the policy": {
			&outbox.Claimed{Attempt: 2, MaxAttempts: 9, Backoff: outbox.Backoff{time.Second, time.Minute, time.Hour}}, boom, nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Minute, Code: "error", Message: "boom"},
		},
		"the last wait of a backoff is that from then on": {
			&outbox.Claimed{Attempt: 7, MaxAttempts: 9, Backoff: outbox.Backoff{time.Second, time.Hour}}, boom, nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Hour, Code: "error", Message: "boom"},
		},
		"what the handler asks for comes before a backoff": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{time.Hour}}, dispatcher.RetryAfter(time.Second, boom), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Second, Code: "error", Message: "boom"},
		},
		"a wait of nonsense is none": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{-time.Hour}}, boom, nil,
			outcome.Outcome{Status: outbox.Retrying, Code: "error", Message: "boom"},
		},
		"an error of the last attempt is dead": {
			last(), boom, nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
		"an error beyond the last attempt is dead": {
			&outbox.Claimed{Attempt: 4, MaxAttempts: 3}, boom, nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
		"an error's own code is stored, wrapped too": {
			first(), fmt.Errorf("brew: %w", teapot{}), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "418", Message: "brew: short and stout"},
		},
		"a panic is a failure with the stack": {
			first(), panicked, nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "panic", Message: "panic: boom", Stack: "goroutine 1"},
		},
		"a panic of the last attempt is dead": {
			last(), panicked, nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: 7 * time.Second, Code: "panic", Message: "panic: boom", Stack: "goroutine 1"},
		},

		"what was not begun goes back soon": {
			last(), fmt.Errorf("wrapped: %w", outcome.ErrNotBegun), nil,
			outcome.Outcome{Status: outbox.Pending, Delay: 100 * time.Millisecond},
		},

		"discard fails for good": {
			first(), dispatcher.Discard(boom), nil,
			outcome.Outcome{Status: outbox.Failed, Code: "error", Message: "boom"},
		},
		"discard fails for good on the last attempt": {
			last(), fmt.Errorf("wrapped: %w", dispatcher.Discard(boom)), nil,
			outcome.Outcome{Status: outbox.Failed, Code: "error", Message: "wrapped: boom"},
		},
		"discard keeps the code": {
			first(), dispatcher.Discard(teapot{}), nil,
			outcome.Outcome{Status: outbox.Failed, Code: "418", Message: "short and stout"},
		},
		"discard without an error": {
			first(), dispatcher.Discard(nil), nil,
			outcome.Outcome{Status: outbox.Failed, Code: "error", Message: "discarded"},
		},

		"retry after comes before the policy": {
			first(), dispatcher.RetryAfter(time.Minute, teapot{}), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Minute, Code: "418", Message: "short and stout"},
		},
		"retry after without an error": {
			first(), dispatcher.RetryAfter(time.Minute, nil), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Minute, Code: "error", Message: "asked to be retried later"},
		},
		"retry after less than no time": {
			first(), dispatcher.RetryAfter(-time.Minute, boom), nil,
			outcome.Outcome{Status: outbox.Retrying, Code: "error", Message: "boom"},
		},
		"retry at least waits longer than the policy": {
			first(), dispatcher.RetryAtLeast(time.Minute, teapot{}), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Minute, Code: "418", Message: "short and stout"},
		},
		"retry at least no time waits as the policy says": {
			first(), dispatcher.RetryAtLeast(0, boom), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
		"retry at least less than no time waits as the policy says": {
			first(), fmt.Errorf("wrapped: %w", dispatcher.RetryAtLeast(-time.Hour, nil)), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "error", Message: "wrapped: asked to be retried later"},
		},
		"retry at least no time waits as the job's own backoff says": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{time.Hour}}, dispatcher.RetryAtLeast(time.Second, boom), nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: time.Hour, Code: "error", Message: "boom"},
		},
		"retry at least on the last attempt is dead": {
			last(), dispatcher.RetryAtLeast(0, boom), nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
		"retry after on the last attempt is dead": {
			last(), dispatcher.RetryAfter(time.Minute, boom), nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: time.Minute, Code: "error", Message: "boom"},
		},

		"snooze is no failure":                   {first(), dispatcher.Snooze(time.Minute), nil, outcome.Outcome{Status: outbox.Pending, Delay: time.Minute}},
		"snooze is possible on the last":         {last(), fmt.Errorf("later: %w", dispatcher.Snooze(time.Minute)), nil, outcome.Outcome{Status: outbox.Pending, Delay: time.Minute}},
		"snooze for less than no time":           {first(), dispatcher.Snooze(-1), nil, outcome.Outcome{Status: outbox.Pending}},
		"snooze also while shutting down":        {first(), dispatcher.Snooze(time.Minute), dispatcher.ErrShutdown, outcome.Outcome{Status: outbox.Pending, Delay: time.Minute}},
		"snooze also after the time was up":      {first(), dispatcher.Snooze(time.Minute), dispatcher.ErrTimeout, outcome.Outcome{Status: outbox.Pending, Delay: time.Minute}},
		"snooze also after Complete rolled back": {completed(first()), dispatcher.Snooze(time.Minute), nil, outcome.Outcome{Status: outbox.Pending, Delay: time.Minute}},

		"a timeout is a failure with its own code": {
			first(), context.DeadlineExceeded, dispatcher.ErrTimeout,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "job_timeout", Message: "context deadline exceeded"},
		},
		"a timeout on the last attempt is dead": {
			last(), boom, dispatcher.ErrTimeout,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Delay: 7 * time.Second, Code: "job_timeout", Message: "boom"},
		},
		"a timeout can be discarded": {
			first(), dispatcher.Discard(boom), dispatcher.ErrTimeout,
			outcome.Outcome{Status: outbox.Failed, Code: "job_timeout", Message: "boom"},
		},

		"cut off by a shutdown is interrupted": {first(), context.Canceled, dispatcher.ErrShutdown, outcome.Outcome{Status: outbox.Pending, KeepDue: true}},
		"cut off on the last attempt too":      {last(), boom, dispatcher.ErrShutdown, outcome.Outcome{Status: outbox.Pending, KeepDue: true}},
		"a lost lease is interrupted":          {first(), boom, outbox.ErrLeaseLost, outcome.Outcome{Status: outbox.Pending, KeepDue: true}},
		"Complete refused, as the handler returns it": {
			last(), fmt.Errorf("tx: %w", outbox.ErrLeaseLost), outbox.ErrLeaseLost,
			outcome.Outcome{Status: outbox.Pending, KeepDue: true},
		},

		"nil succeeds although it was cancelled": {first(), nil, dispatcher.ErrCancelled, outcome.Outcome{Status: outbox.Succeeded}},
		"cancelled keeps the handler's words": {
			last(), fmt.Errorf("stopped half-way: %w", context.Canceled), dispatcher.ErrCancelled,
			outcome.Outcome{Status: outbox.Pending, Code: "cancelled", Message: "stopped half-way: context canceled"},
		},
		"the deadline is not retried": {
			first(), dispatcher.Discard(boom), dispatcher.ErrDeadline,
			outcome.Outcome{Status: outbox.Pending, Delay: outcome.PastDeadline.Delay, Code: "deadline", Message: "boom"},
		},
		"snoozed past the deadline, the database refuses": {first(), dispatcher.Snooze(time.Hour), dispatcher.ErrDeadline, outcome.Outcome{Status: outbox.Pending, Delay: time.Hour}},

		"Complete that did not commit is tried again at once": {
			completed(first()), nil, nil,
			outcome.Outcome{Status: outbox.Retrying, Code: "complete_not_committed", Message: "job.Complete was called, but its transaction did not commit"},
		},
		"Complete that did not commit on the last attempt": {
			completed(last()), nil, nil,
			outcome.Outcome{Status: outbox.Dead, KeepDue: true, Code: "complete_not_committed", Message: "job.Complete was called, but its transaction did not commit"},
		},
		"Complete whose commit failed is an error": {
			completed(first()), boom, nil,
			outcome.Outcome{Status: outbox.Retrying, Delay: 7 * time.Second, Code: "error", Message: "boom"},
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			got, _ := policy.Decide(c.job, c.err, c.cause)
			if got.KeepDue { // then the delay means nothing
				got.Delay, c.want.Delay = 0, 0
			}
			if c.want.Status == outbox.Failed { // nothing waits for the due time of a dead letter
				got.KeepDue, c.want.KeepDue = false, false
			}
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// oneRow is a database that answers every query with one row.
type oneRow struct{ pgx.Rows }

func (*oneRow) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, nil
}
func (*oneRow) Query(context.Context, string, ...any) (pgx.Rows, error) { return &rowsOnce{}, nil }
func (*oneRow) QueryRow(context.Context, string, ...any) pgx.Row        { return nil }

type rowsOnce struct {
	pgx.Rows
	read bool
}

func (r *rowsOnce) Next() bool        { read := r.read; r.read = true; return !read }
func (r *rowsOnce) Scan(...any) error { return nil }
func (r *rowsOnce) Close()            {}
func (r *rowsOnce) Err() error        { return nil }
