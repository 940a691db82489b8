package dispatcher

import (
	"errors"
	"time"

	"github.com/posthaste-dev/posthaste/internal/outcome"
)

// These causes end a handler's context; [outbox.ErrLeaseLost] does, too.
var (
	ErrTimeout  = outcome.ErrTimeout
	ErrShutdown = outcome.ErrShutdown
	// ErrCancelled means that the job was cancelled. It ends cancelled with the handler's error, or succeeded if the
	// handler returns nil all the same.
	ErrCancelled = outcome.ErrCancelled
	// ErrDeadline means that the job's deadline has come. The job ends expired, whatever the handler returns.
	ErrDeadline = outcome.ErrDeadline
)

// Discard fails the job for good: it becomes failed and waits among the dead letters for an operator, however many
// attempts are left.
func Discard(err error) error { return &outcome.Discarded{Err: cmpErr(err, "discarded")} }

// RetryAfter retries the job after the given time instead of the policy's, if attempts are left. A negative wait means
// no wait.
func RetryAfter(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, Err: cmpErr(err, "asked to be retried later")}
}

// RetryAtLeast retries the job as [RetryAfter] does, for a time that another system asked for, such as the Retry-After
// header of an HTTP response. The job waits at least as long as its back-off says, so that a receiver that answers "at
// once" does not use up every attempt within a second.
func RetryAtLeast(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, AtLeast: true, Err: cmpErr(err, "asked to be retried later")}
}

// Snooze makes the job pending again for the given time. It is not a failure: it spends no attempt and records no
// error. A negative wait means no wait.
func Snooze(wait time.Duration) error { return &outcome.Snoozed{Wait: wait} }

// Unavailable reports that a dependency of the job is unavailable, which is not the job's fault. The job is retried
// after retryAfter and spends no attempt, for as long as the kind's OutageLimit (24 h by default), counted from the
// first such outcome in a row. After that it is a failure like any other. With a retryAfter of 0 the job waits as long
// as the outage has lasted so far, within 1 s and 5 min. The error is stored with the job; the attempt is not recorded.
//
// After five such outcomes of a kind in a row, each process stops claiming the kind's jobs in that queue and only tries
// one of them from time to time: 0.1 to 5 s apart at first; in a long outage after an eighth of the time that it has
// lasted so far; or after retryAfter if that is longer; but never more than a minute apart. Any other outcome that a
// handler returns ends this at once. For a kind whose jobs depend on different targets, see [TargetUnavailable].
//
// Use it for conditions that would affect every job alike, such as a refused connection. A job that can itself bring
// down its dependency would do so again and again.
func Unavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmpErr(err, "unavailable"), Wait: max(retryAfter, 0)}
}

// TargetUnavailable reports an outage as [Unavailable] does, for a kind whose jobs have different targets, such as the
// webhooks of many customers: this job's target is unavailable, and the targets of other jobs need not be. The kind
// stays available, and each job waits on its own.
func TargetUnavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmpErr(err, "unavailable"), Wait: max(retryAfter, 0), OfTarget: true}
}

// WithCode attaches the error code that is stored with the failed attempt. Operators search by it, and
// KindConfig.FailOn matches it. An error type with a method Code() string needs no WithCode.
func WithCode(code string, err error) error { return outcome.WithCode(code, cmpErr(err, code)) }

func cmpErr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}
