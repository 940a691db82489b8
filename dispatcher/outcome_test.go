package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/outbox"
)

type teapot struct{}

func (teapot) Error() string { return "short and stout" }
func (teapot) Code() string  { return "418" }

func TestDecide(t *testing.T) {
	boom := errors.New("boom")
	policy := Waits(7 * time.Second)
	first := func() *outbox.Claimed { return &outbox.Claimed{Epoch: 1, Attempt: 1, MaxAttempts: 3} }
	last := func() *outbox.Claimed { return &outbox.Claimed{Epoch: 1, Attempt: 3, MaxAttempts: 3} }
	completed := func(job *outbox.Claimed) *outbox.Claimed {
		if err := job.Complete(t.Context(), &oneRow{}); err != nil {
			t.Fatal(err)
		}
		return job
	}
	panicked := &panicError{value: "boom", stack: "goroutine 1"}

	for behaviour, c := range map[string]struct {
		job        *outbox.Claimed
		err, cause error
		want       outcome
	}{
		"nil succeeds":                             {first(), nil, nil, outcome{status: outbox.Succeeded}},
		"nil succeeds on the last attempt":         {last(), nil, nil, outcome{status: outbox.Succeeded}},
		"nil succeeds although the time was up":    {first(), nil, ErrTimeout, outcome{status: outbox.Succeeded}},
		"nil succeeds although it was cut off":     {first(), nil, ErrShutdown, outcome{status: outbox.Succeeded}},
		"nil succeeds although the lease was lost": {first(), nil, outbox.ErrLeaseLost, outcome{status: outbox.Succeeded}},

		"an error waits as the policy says": {
			first(), boom, nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "error", message: "boom"},
		},
		"a job's own back-off comes before the policy": {
			&outbox.Claimed{Attempt: 2, MaxAttempts: 9, Backoff: outbox.Backoff{time.Second, time.Minute, time.Hour}}, boom, nil,
			outcome{status: outbox.Retrying, delay: time.Minute, code: "error", message: "boom"},
		},
		"the last wait of a back-off is that from then on": {
			&outbox.Claimed{Attempt: 7, MaxAttempts: 9, Backoff: outbox.Backoff{time.Second, time.Hour}}, boom, nil,
			outcome{status: outbox.Retrying, delay: time.Hour, code: "error", message: "boom"},
		},
		"what the handler asks for comes before a back-off": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{time.Hour}}, RetryAfter(time.Second, boom), nil,
			outcome{status: outbox.Retrying, delay: time.Second, code: "error", message: "boom"},
		},
		"a wait of nonsense is none": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{-time.Hour}}, boom, nil,
			outcome{status: outbox.Retrying, code: "error", message: "boom"},
		},
		"an error of the last attempt is dead": {
			last(), boom, nil,
			outcome{status: outbox.Dead, keepDue: true, delay: 7 * time.Second, code: "error", message: "boom"},
		},
		"an error beyond the last attempt is dead": {
			&outbox.Claimed{Attempt: 4, MaxAttempts: 3}, boom, nil,
			outcome{status: outbox.Dead, keepDue: true, delay: 7 * time.Second, code: "error", message: "boom"},
		},
		"an error's own code is stored, wrapped too": {
			first(), fmt.Errorf("brew: %w", teapot{}), nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "418", message: "brew: short and stout"},
		},
		"a panic is a failure with the stack": {
			first(), panicked, nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "panic", message: "panic: boom", stack: "goroutine 1"},
		},
		"a panic of the last attempt is dead": {
			last(), panicked, nil,
			outcome{status: outbox.Dead, keepDue: true, delay: 7 * time.Second, code: "panic", message: "panic: boom", stack: "goroutine 1"},
		},

		"discard fails for good": {
			first(), Discard(boom), nil,
			outcome{status: outbox.Failed, code: "error", message: "boom"},
		},
		"discard fails for good on the last attempt": {
			last(), fmt.Errorf("wrapped: %w", Discard(boom)), nil,
			outcome{status: outbox.Failed, code: "error", message: "wrapped: boom"},
		},
		"discard keeps the code": {
			first(), Discard(teapot{}), nil,
			outcome{status: outbox.Failed, code: "418", message: "short and stout"},
		},
		"discard without an error": {
			first(), Discard(nil), nil,
			outcome{status: outbox.Failed, code: "error", message: "discarded"},
		},

		"retry after comes before the policy": {
			first(), RetryAfter(time.Minute, teapot{}), nil,
			outcome{status: outbox.Retrying, delay: time.Minute, code: "418", message: "short and stout"},
		},
		"retry after without an error": {
			first(), RetryAfter(time.Minute, nil), nil,
			outcome{status: outbox.Retrying, delay: time.Minute, code: "error", message: "asked to be retried later"},
		},
		"retry after less than no time": {
			first(), RetryAfter(-time.Minute, boom), nil,
			outcome{status: outbox.Retrying, code: "error", message: "boom"},
		},
		"retry at least waits longer than the policy": {
			first(), RetryAtLeast(time.Minute, teapot{}), nil,
			outcome{status: outbox.Retrying, delay: time.Minute, code: "418", message: "short and stout"},
		},
		"retry at least no time waits as the policy says": {
			first(), RetryAtLeast(0, boom), nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "error", message: "boom"},
		},
		"retry at least less than no time waits as the policy says": {
			first(), fmt.Errorf("wrapped: %w", RetryAtLeast(-time.Hour, nil)), nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "error", message: "wrapped: asked to be retried later"},
		},
		"retry at least no time waits as the job's own back-off says": {
			&outbox.Claimed{Attempt: 1, MaxAttempts: 9, Backoff: outbox.Backoff{time.Hour}}, RetryAtLeast(time.Second, boom), nil,
			outcome{status: outbox.Retrying, delay: time.Hour, code: "error", message: "boom"},
		},
		"retry at least on the last attempt is dead": {
			last(), RetryAtLeast(0, boom), nil,
			outcome{status: outbox.Dead, keepDue: true, delay: 7 * time.Second, code: "error", message: "boom"},
		},
		"retry after on the last attempt is dead": {
			last(), RetryAfter(time.Minute, boom), nil,
			outcome{status: outbox.Dead, keepDue: true, delay: time.Minute, code: "error", message: "boom"},
		},

		"snooze is no failure":                   {first(), Snooze(time.Minute), nil, outcome{status: outbox.Pending, delay: time.Minute}},
		"snooze is possible on the last":         {last(), fmt.Errorf("later: %w", Snooze(time.Minute)), nil, outcome{status: outbox.Pending, delay: time.Minute}},
		"snooze for less than no time":           {first(), Snooze(-1), nil, outcome{status: outbox.Pending}},
		"snooze also while shutting down":        {first(), Snooze(time.Minute), ErrShutdown, outcome{status: outbox.Pending, delay: time.Minute}},
		"snooze also after the time was up":      {first(), Snooze(time.Minute), ErrTimeout, outcome{status: outbox.Pending, delay: time.Minute}},
		"snooze also after Complete rolled back": {completed(first()), Snooze(time.Minute), nil, outcome{status: outbox.Pending, delay: time.Minute}},

		"a timeout is a failure with its own code": {
			first(), context.DeadlineExceeded, ErrTimeout,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "job_timeout", message: "context deadline exceeded"},
		},
		"a timeout on the last attempt is dead": {
			last(), boom, ErrTimeout,
			outcome{status: outbox.Dead, keepDue: true, delay: 7 * time.Second, code: "job_timeout", message: "boom"},
		},
		"a timeout can be discarded": {
			first(), Discard(boom), ErrTimeout,
			outcome{status: outbox.Failed, code: "job_timeout", message: "boom"},
		},

		"cut off by a shutdown is interrupted": {first(), context.Canceled, ErrShutdown, outcome{status: outbox.Pending, keepDue: true}},
		"cut off on the last attempt too":      {last(), boom, ErrShutdown, outcome{status: outbox.Pending, keepDue: true}},
		"a lost lease is interrupted":          {first(), boom, outbox.ErrLeaseLost, outcome{status: outbox.Pending, keepDue: true}},
		"Complete refused, as the handler returns it": {
			last(), fmt.Errorf("tx: %w", outbox.ErrLeaseLost), outbox.ErrLeaseLost,
			outcome{status: outbox.Pending, keepDue: true},
		},

		"nil succeeds although it was cancelled": {first(), nil, ErrCancelled, outcome{status: outbox.Succeeded}},
		"cancelled keeps the handler's words": {
			last(), fmt.Errorf("stopped half-way: %w", context.Canceled), ErrCancelled,
			outcome{status: outbox.Pending, code: "cancelled", message: "stopped half-way: context canceled"},
		},
		"the deadline is not retried": {
			first(), Discard(boom), ErrDeadline,
			outcome{status: outbox.Pending, delay: pastDeadline, code: "deadline", message: "boom"},
		},
		"snoozed past the deadline, the database refuses": {first(), Snooze(time.Hour), ErrDeadline, outcome{status: outbox.Pending, delay: time.Hour}},

		"Complete that did not commit is tried again at once": {
			completed(first()), nil, nil,
			outcome{status: outbox.Retrying, code: "complete_not_committed", message: "job.Complete was called, but its transaction did not commit"},
		},
		"Complete that did not commit on the last attempt": {
			completed(last()), nil, nil,
			outcome{status: outbox.Dead, keepDue: true, code: "complete_not_committed", message: "job.Complete was called, but its transaction did not commit"},
		},
		"Complete whose commit failed is an error": {
			completed(first()), boom, nil,
			outcome{status: outbox.Retrying, delay: 7 * time.Second, code: "error", message: "boom"},
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			got := decide(c.job, policy, c.err, c.cause)
			if got.keepDue { // then the delay means nothing
				got.delay, c.want.delay = 0, 0
			}
			if c.want.status == outbox.Failed { // nothing waits for the due time of a dead letter
				got.keepDue, c.want.keepDue = false, false
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
