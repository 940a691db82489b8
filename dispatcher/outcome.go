package dispatcher

import (
	"errors"
	"time"

	"github.com/posthaste-dev/posthaste/internal/outcome"
)

// Causes with which a handler's context ends, besides [outbox.ErrLeaseLost].
var (
	ErrTimeout  = outcome.ErrTimeout
	ErrShutdown = outcome.ErrShutdown
	// ErrCancelled: somebody has called the job off. It ends cancelled with the
	// handler's error, or succeeded if the handler returns nil all the same.
	ErrCancelled = outcome.ErrCancelled
	// ErrDeadline: the job's deadline has come. It ends expired, whatever the
	// handler returns.
	ErrDeadline = outcome.ErrDeadline
)

// Discard fails the job for good: it becomes failed and waits for a person among
// the dead letters, whatever attempts are left.
func Discard(err error) error { return &outcome.Discarded{Err: cmpErr(err, "discarded")} }

// RetryAfter has the job tried again after the given time instead of the
// policy's, if attempts are left. A negative wait is none.
func RetryAfter(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, Err: cmpErr(err, "asked to be retried later")}
}

// RetryAtLeast is [RetryAfter] for a time that comes from somebody else, such as the
// Retry-After of an HTTP answer: the job waits at least as long as the back-off
// says, so that a receiver that answers "at once" does not use up every attempt
// within a second.
func RetryAtLeast(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, AtLeast: true, Err: cmpErr(err, "asked to be retried later")}
}

// Snooze puts the job back as pending for the given time. It is not a failure: no
// attempt is spent and no error recorded. A negative wait is none.
func Snooze(wait time.Duration) error { return &outcome.Snoozed{Wait: wait} }

// Unavailable says that something that the job depends on is away, which is not
// the job's fault: it is tried again after retryAfter and spends no attempt, for as
// long as the kind's OutageLimit (24 h by default) from the first such outcome in a
// row on. After that it is a failure like any other. With a retryAfter of 0 the job
// waits as long as the outage has lasted so far, from 1 s to 5 min. The error is
// stored with the job; there is no record of the attempt.
//
// After five such outcomes of a kind in a row each process leaves the kind's jobs in that queue alone, and tries one
// of them from time to time: 0.1 to 5 s apart, in a long outage after an eighth of how long it has lasted so far,
// up to a minute, or after retryAfter if that is longer, but for the minute. Any other outcome that a handler
// returns ends that at once. For a kind whose jobs need different things see [TargetUnavailable].
//
// Use it for what would meet any job alike, such as a refused connection. A job that
// can bring down by itself what it talks to would do so again and again.
func Unavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmpErr(err, "unavailable"), Wait: max(retryAfter, 0)}
}

// TargetUnavailable is Unavailable for a kind whose jobs have different targets, such as the webhooks of many
// customers: this job's is away, and those of others need not be. The kind goes on, and each job waits by itself.
func TargetUnavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmpErr(err, "unavailable"), Wait: max(retryAfter, 0), OfTarget: true}
}

// WithCode gives err the code that is stored with the failed attempt, by which
// operators find it and KindConfig.FailOn judges it. An error type that has a method
// Code() string needs no WithCode.
func WithCode(code string, err error) error { return outcome.WithCode(code, cmpErr(err, code)) }

func cmpErr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}
