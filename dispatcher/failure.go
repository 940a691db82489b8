package dispatcher

import (
	"errors"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

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
	return &unavailableError{err: cmpErr(err, "unavailable"), wait: max(retryAfter, 0)}
}

// TargetUnavailable is Unavailable for a kind whose jobs have different targets, such as the webhooks of many
// customers: this job's is away, and those of others need not be. The kind goes on, and each job waits by itself.
func TargetUnavailable(err error, retryAfter time.Duration) error {
	return &unavailableError{err: cmpErr(err, "unavailable"), wait: max(retryAfter, 0), ofTarget: true}
}

type unavailableError struct {
	err      error
	wait     time.Duration
	ofTarget bool // others of the kind may have another
}

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// WithCode gives err the code that is stored with the failed attempt, by which
// operators find it and KindConfig.FailOn judges it. An error type that has a method
// Code() string needs no WithCode.
func WithCode(code string, err error) error { return &codedError{code, cmpErr(err, code)} }

const defaultOutageLimit = 24 * time.Hour

// classify applies what the kind says of failures.
func (c KindConfig) classify(o outcome, err error) outcome {
	if o.status != outbox.Retrying && o.status != outbox.Dead {
		return o
	}
	if slices.Contains(c.FailOn, o.code) {
		o.status, o.keepDue = outbox.Failed, true
		return o
	}
	if away, ok := errors.AsType[*unavailableError](err); ok && c.OutageLimit > 0 {
		o.outageLimit, o.wait = c.OutageLimit, away.wait
	}
	return o
}
