// Package outcome decides what becomes of a job after an attempt. Package dispatcher, whose jobs are stored, and
// package memory, whose jobs are not, share it. It uses no database and starts no goroutines.
package outcome

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Outcome is the decision about a job after an attempt.
type Outcome struct {
	Status  outbox.Status
	Delay   time.Duration // until the next try
	KeepDue bool          // leave run_at unchanged
	Code    string
	Message string
	Stack   string

	// OutageLimit and Wait are set for an outage. It is a failure as above only once it has lasted for OutageLimit;
	// before, it spends no attempt.
	OutageLimit time.Duration // 0 means no outage
	Wait        time.Duration // the handler's wish; 0 means as long as the outage has lasted
}

// Policy holds a kind's settings for its attempts.
type Policy struct {
	Backoff     func(job *outbox.Claimed, err error) time.Duration // for jobs without one of their own; not nil
	FailOn      []string                                           // codes that fail a job for good
	OutageLimit time.Duration                                      // 0 means 24 h; negative: an outage spends attempts
}

// Decide turns the end of an attempt into the job's next state, and returns the error that belongs to it. cause is why
// the handler's context ended, or nil if it had not. Errors and backoff policies are the program's code and may panic:
// then the panic becomes the attempt's error.
func (p Policy) Decide(job *outbox.Claimed, err, cause error) (Outcome, error) {
	var o Outcome
	panicked := Catch(func() { o = p.classify(p.decide(job, err, cause), err) })
	if panicked == nil {
		return o, err
	}
	panicked.Value = fmt.Sprintf("in the error or the backoff policy: %v", panicked.Value)
	return p.Fail(job, panicked), panicked
}

// Fail returns the outcome of a failed attempt without calling the error or the backoff policy.
func (p Policy) Fail(job *outbox.Claimed, err error) Outcome {
	return p.classify(failure(job, time.Minute, err), err)
}

// Discard returns the outcome of a job that must wait for an operator.
func Discard(job *outbox.Claimed, err error) Outcome {
	o := failure(job, 0, err)
	o.Status, o.KeepDue = outbox.Failed, true
	return o
}

func (p Policy) decide(job *outbox.Claimed, err, cause error) Outcome {
	snooze, snoozed := errors.AsType[*Snoozed](err)
	switch {
	case snoozed:
		return Outcome{Status: outbox.Pending, Delay: max(snooze.Wait, 0)}
	case err == nil && engine.InternalOf(job).Completed.Load():
		// The handler claims that its own transaction finished the job. If it did, the settlement finds no row; if it
		// rolled back, the attempt has failed.
		return failure(job, 0,
			WithCode(codes.CompleteNotCommitted,
				errors.New("job.Complete was called, but its transaction did not commit")))
	case err == nil && len(job.Result) > engine.MaxPayloadBytes:
		return Discard(job, WithCode(codes.ResultTooLarge, fmt.Errorf("the result is %d bytes, want at most %d",
			len(job.Result), engine.MaxPayloadBytes)))
	case err == nil:
		return Outcome{Status: outbox.Succeeded}
	case errors.Is(cause, ErrShutdown), errors.Is(cause, outbox.ErrLeaseLost):
		return Interrupted
	case errors.Is(err, ErrNotBegun):
		return Outcome{Status: outbox.Pending, Delay: soon}
	case errors.Is(cause, ErrCancelled):
		return calledOff(job, 0, WithCode(codes.Cancelled, err))
	case errors.Is(cause, ErrDeadline):
		return calledOff(job, pastDeadline, WithCode(codes.Deadline, err))
	case errors.Is(cause, ErrTimeout):
		err = WithCode(codes.Timeout, err)
	}
	if _, ok := errors.AsType[*Discarded](err); ok {
		return Discard(job, err)
	}
	return p.retry(job, err)
}

// retry returns the outcome of a failure after which another attempt may succeed.
func (p Policy) retry(job *outbox.Claimed, err error) Outcome {
	asked, ok := errors.AsType[*Postponed](err)
	if ok && !asked.AtLeast {
		return failure(job, asked.Wait, err)
	}
	var wait time.Duration
	if len(job.Backoff) > 0 { // the job's own backoff takes precedence over its kind's
		wait = Turn(job.Backoff, job.Attempt)
	} else {
		wait = p.Backoff(job, err)
	}
	if ok {
		wait = max(wait, asked.Wait)
	}
	return failure(job, wait, err)
}

// classify applies the kind's settings for failures.
func (p Policy) classify(o Outcome, err error) Outcome {
	if o.Status != outbox.Retrying && o.Status != outbox.Dead {
		return o
	}
	if slices.Contains(p.FailOn, o.Code) {
		o.Status, o.KeepDue = outbox.Failed, true
		return o
	}
	limit := cmp.Or(p.OutageLimit, 24*time.Hour)
	if away, ok := errors.AsType[*Unavailable](err); ok && limit > 0 {
		o.OutageLimit, o.Wait = limit, away.Wait
	}
	return o
}

// Turn returns the wait after a failed attempt from the waits that a backoff lists: the last one repeats, and an empty
// list means no wait.
func Turn(waits []time.Duration, attempt int) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	return waits[min(max(attempt, 1), len(waits))-1]
}

// Interrupted is the outcome of an attempt that did not fail. If the lease is really lost, the settlement finds no row.
var Interrupted = Outcome{Status: outbox.Pending, KeepDue: true}

// soon is the delay of a job that its batch's handler did not get to: the cause may last for longer.
const soon = 100 * time.Millisecond

// PastDeadline is the outcome of a job that was not begun because its deadline has come.
var PastDeadline = Outcome{Status: outbox.Pending, Delay: pastDeadline}

// pastDeadline keeps a job that we have stopped at its deadline from starting again before the reaper has come.
const pastDeadline = 2 * time.Second

// calledOff returns the outcome of an attempt that was cancelled, or whose deadline has come. The database decides
// about closing the job: it refuses this outcome like any other, and then CloseAttempts closes the job with this error.
// If the database does not know of the end yet (its clock was set back, or the claim was under way for long), the job
// waits until it does, and no worker starts it before.
func calledOff(job *outbox.Claimed, wait time.Duration, err error) Outcome {
	o := failure(job, wait, err)
	o.Status, o.KeepDue = outbox.Pending, false
	return o
}

const (
	maxMessage = 4 << 10
	maxStack   = 16 << 10
)

func failure(job *outbox.Claimed, wait time.Duration, err error) Outcome {
	o := Outcome{
		Status: outbox.Retrying, Delay: max(wait, 0), Code: codes.Error,
		Message: pgvalue.Text(err.Error(), maxMessage),
	}
	if job.Attempt >= job.MaxAttempts {
		o.Status, o.KeepDue = outbox.Dead, true
	}
	if coded, ok := errors.AsType[interface {
		error
		Code() string
	}](err); ok && coded.Code() != "" {
		o.Code = pgvalue.Text(coded.Code(), engine.MaxNameBytes)
	}
	if panicked, ok := errors.AsType[*Panicked](err); ok {
		o.Stack = pgvalue.Text(panicked.Stack, maxStack)
	}
	return o
}

// SpellInASCII escapes the non-ASCII characters of the error, and reports whether there were any.
func (o *Outcome) SpellInASCII() bool {
	before := *o
	o.Code = pgvalue.ASCII(o.Code, engine.MaxNameBytes)
	o.Message = pgvalue.ASCII(o.Message, maxMessage)
	o.Stack = pgvalue.ASCII(o.Stack, maxStack)
	return *o != before
}
