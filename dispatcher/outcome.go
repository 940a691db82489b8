package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Causes with which a handler's context ends, besides [outbox.ErrLeaseLost].
var (
	ErrTimeout  = fmt.Errorf("job timeout: %w", context.DeadlineExceeded)
	ErrShutdown = errors.New("shutting down: the grace period is over")
	// ErrCancelled: somebody has called the job off. It ends cancelled with the
	// handler's error, or succeeded if the handler returns nil all the same.
	ErrCancelled = errors.New("job cancelled")
	// ErrDeadline: the job's deadline has come. It ends expired, whatever the
	// handler returns.
	ErrDeadline = fmt.Errorf("job deadline: %w", context.DeadlineExceeded)
)

// Discard fails the job for good: it becomes failed and waits for a person among
// the dead letters, whatever attempts are left.
func Discard(err error) error { return &discardError{cmpErr(err, "discarded")} }

// RetryAfter has the job tried again after the given time instead of the
// policy's, if attempts are left.
func RetryAfter(wait time.Duration, err error) error {
	return &retryAfterError{wait: wait, err: cmpErr(err, "asked to be retried later")}
}

// RetryAtLeast is [RetryAfter] for a time that comes from somebody else, such as the
// Retry-After of an HTTP answer: the job waits at least as long as the back-off
// says, so that a receiver that answers "at once" does not use up every attempt
// within a second.
func RetryAtLeast(wait time.Duration, err error) error {
	return &retryAfterError{wait: wait, atLeast: true, err: cmpErr(err, "asked to be retried later")}
}

// Snooze puts the job back as pending for the given time. It is not a failure: no
// attempt is spent and no error recorded.
func Snooze(wait time.Duration) error { return &snoozeError{wait} }

type discardError struct{ err error }

func (e *discardError) Error() string { return e.err.Error() }
func (e *discardError) Unwrap() error { return e.err }

type retryAfterError struct {
	wait    time.Duration
	atLeast bool // the policy's wait, if that is longer
	err     error
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

type snoozeError struct{ wait time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("snoozed for %s", e.wait) }

// codedError gives an error the code that is stored with the failed attempt.
// Handlers do the same with any error type that has a method Code() string.
type codedError struct {
	code string
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }
func (e *codedError) Code() string  { return e.code }

// panicError is a handler's panic.
type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
func (e *panicError) Code() string  { return codes.Panic }

func cmpErr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}

// outcome is what is to become of a job after an attempt.
type outcome struct {
	status  outbox.Status
	delay   time.Duration
	keepDue bool // leave run_at as it is
	code    string
	message string
	stack   string

	// Of an outcome that is an outage, which is a failure as above only once the
	// outage has lasted too long.
	outageLimit time.Duration // 0: it is none
	wait        time.Duration // that the handler asked for; 0: as long as the outage has lasted
}

// decide turns an attempt's end into the job's next state. cause is why the
// handler's context ended, nil if it had not.
func decide(job *outbox.Claimed, retry BackoffPolicy, err, cause error) outcome {
	snooze, snoozed := errors.AsType[*snoozeError](err)
	switch {
	case snoozed:
		return outcome{status: outbox.Pending, delay: max(snooze.wait, 0)}
	case err == nil && engine.Of(job).Completed.Load():
		// The handler says that its own transaction finished the job. If it did, this
		// finds no row; if it rolled back, the attempt has failed.
		return failure(job, 0, &codedError{codes.CompleteNotCommitted, errors.New("job.Complete was called, but its transaction did not commit")})
	case err == nil && len(job.Result) > engine.MaxPayloadBytes:
		o := failure(job, 0, &codedError{codes.ResultTooLarge, fmt.Errorf("the result is %d bytes, want at most %d", len(job.Result), engine.MaxPayloadBytes)})
		o.status, o.keepDue = outbox.Failed, true
		return o
	case err == nil:
		return outcome{status: outbox.Succeeded}
	case errors.Is(cause, ErrShutdown), errors.Is(cause, outbox.ErrLeaseLost):
		// Interrupted is not failed. If the lease is really lost, this finds no row.
		return outcome{status: outbox.Pending, keepDue: true}
	case errors.Is(cause, ErrCancelled):
		return calledOff(job, 0, &codedError{codes.Cancelled, err})
	case errors.Is(cause, ErrDeadline):
		return calledOff(job, pastDeadline, &codedError{codes.Deadline, err})
	case errors.Is(cause, ErrTimeout):
		err = &codedError{codes.Timeout, err}
	}
	if _, ok := errors.AsType[*discardError](err); ok {
		o := failure(job, 0, err)
		o.status, o.keepDue = outbox.Failed, true
		return o
	}
	asked, ok := errors.AsType[*retryAfterError](err)
	if ok && !asked.atLeast {
		return failure(job, asked.wait, err)
	}
	if len(job.Backoff) > 0 { // its own comes before its kind's
		retry = Waits(job.Backoff...)
	}
	wait := retry(job, err)
	if ok {
		wait = max(wait, asked.wait)
	}
	return failure(job, wait, err)
}

func failure(job *outbox.Claimed, wait time.Duration, err error) outcome {
	o := outcome{status: outbox.Retrying, delay: max(wait, 0), code: codes.Error, message: pgvalue.Text(err.Error(), maxMessage)}
	if job.Attempt >= job.MaxAttempts {
		o.status, o.keepDue = outbox.Dead, true
	}
	if coded, ok := errors.AsType[interface {
		error
		Code() string
	}](err); ok && coded.Code() != "" {
		o.code = pgvalue.Text(coded.Code(), engine.MaxNameBytes)
	}
	if panicked, ok := errors.AsType[*panicError](err); ok {
		o.stack = pgvalue.Text(panicked.stack, maxStack)
	}
	return o
}

// spellInASCII escapes what is not ASCII in the error, and reports whether anything was.
func (o *outcome) spellInASCII() bool {
	before := *o
	o.code = pgvalue.ASCII(o.code, engine.MaxNameBytes)
	o.message = pgvalue.ASCII(o.message, maxMessage)
	o.stack = pgvalue.ASCII(o.stack, maxStack)
	return *o != before
}

// calledOff is the outcome of an attempt that was cancelled, or whose deadline has
// come. Closing the job is the database's word: it refuses this outcome as it
// refuses any other, and then CloseAttempts closes the job with this error. Should
// the database not know of it yet (its clock was set back, or the claim was under
// way for long), the job waits for that, and nobody starts it before.
func calledOff(job *outbox.Claimed, wait time.Duration, err error) outcome {
	o := failure(job, wait, err)
	o.status, o.keepDue = outbox.Pending, false
	return o
}

// pastDeadline is for how long a job that we have stopped at its deadline is not
// to be started again: until the reaper has come.
const pastDeadline = 2 * time.Second

const (
	maxMessage = 4 << 10
	maxStack   = 16 << 10
)

// causeOf is context.Cause for a context that has ended, nil otherwise.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
