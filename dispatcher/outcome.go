package dispatcher

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These causes end a handler's context; [outbox.ErrLeaseLost] does, too.
var (
	// ErrTimeout means that the attempt's time is over. If the handler then returns an error, the attempt fails with
	// the code job_timeout.
	ErrTimeout = outcome.ErrTimeout
	// ErrShutdown means that the process stops and its grace period is over. If the handler then returns an error, the
	// job becomes pending again and spends no attempt.
	ErrShutdown = outcome.ErrShutdown
	// ErrCancelled means that the job was cancelled. It ends cancelled with the handler's error, or succeeded if the
	// handler returns nil all the same.
	ErrCancelled = outcome.ErrCancelled
	// ErrDeadline means that the job's deadline has come. The job ends expired, whatever the handler returns.
	ErrDeadline = outcome.ErrDeadline
)

// Discard fails the job permanently: it becomes failed and waits among the dead letters for an operator, however many
// attempts are left.
func Discard(err error) error { return &outcome.Discarded{Err: cmp.Or(err, errors.New("discarded"))} }

// RetryAfter retries the job after the given time instead of the policy's, if attempts are left. A negative wait means
// no wait.
func RetryAfter(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, Err: cmp.Or(err, errors.New("asked to be retried later"))}
}

// RetryAtLeast retries the job as [RetryAfter] does, for a time that another system asked for, such as the Retry-After
// header of an HTTP response. The job waits at least as long as its backoff, so that a receiver that answers "at once"
// does not use up every attempt within a second.
func RetryAtLeast(wait time.Duration, err error) error {
	return &outcome.Postponed{Wait: wait, AtLeast: true, Err: cmp.Or(err, errors.New("asked to be retried later"))}
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
// lasted so far; or after retryAfter if that is longer; but never more than a minute apart. The first success or
// ordinary failure ends this at once; timeouts, undecodable payloads and interruptions do not. For a kind whose jobs
// depend on different targets, see [TargetUnavailable].
//
// Use it for conditions that would affect every job alike, such as a refused connection. A job that can itself bring
// down its dependency would do so again and again.
func Unavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmp.Or(err, errors.New("unavailable")), Wait: max(retryAfter, 0)}
}

// TargetUnavailable reports an outage as [Unavailable] does, for a kind whose jobs have different targets, such as the
// webhooks of many customers: this job's target is unavailable, and the targets of other jobs need not be. The kind
// stays available, and each job waits on its own.
func TargetUnavailable(err error, retryAfter time.Duration) error {
	return &outcome.Unavailable{Err: cmp.Or(err, errors.New("unavailable")), Wait: max(retryAfter, 0), OfTarget: true}
}

// WithCode attaches the error code that is stored with the failed attempt. Operators search by it, and
// KindConfig.FailOn matches it. An error type with a method Code() string needs no WithCode.
func WithCode(code string, err error) error {
	return outcome.WithCode(code, cmp.Or(err, errors.New(code)))
}

// KindConfig configures the attempts of one kind. The zero value takes the dispatcher's defaults.
type KindConfig struct {
	Timeout time.Duration // of one attempt; 0 means Config.Timeout. A job's own Options.Timeout takes precedence
	Backoff BackoffPolicy // nil means Config.Backoff. A job's own Options.Backoff takes precedence

	// FailOn lists error codes that fail a job permanently, as [Discard] does, however many attempts are left. All
	// other errors are retried up to the job's own Options.MaxAttempts. FailOn does not apply to a lost lease: no
	// handler has failed.
	FailOn []string
	// OutageLimit is how long [Unavailable] spends no attempts, counted from the first such outcome in a row. 0 means
	// 24 h; with a negative limit every such outcome spends an attempt.
	OutageLimit time.Duration
}

// Validate returns every mistake as an [*outbox.InvalidError] that names the field. [New] calls it for every kind.
func (c KindConfig) Validate() error {
	var errs []error
	if c.Timeout != 0 && c.Timeout < engine.MinTimeout || c.Timeout > engine.MaxDuration {
		errs = append(errs, invalid.Field("KindConfig.Timeout",
			"is %s, want %s to 100 years, or 0 for that of the process", c.Timeout, engine.MinTimeout))
	}
	for _, code := range c.FailOn {
		if code == "" || len(code) > engine.MaxNameBytes { // no failure is stored with such a code
			errs = append(errs, invalid.Field("KindConfig.FailOn", "has the code %q, want 1 to %d bytes", code,
				engine.MaxNameBytes))
		}
	}
	return errors.Join(errs...)
}

func (c KindConfig) policy() outcome.Policy {
	return outcome.Policy{Backoff: c.Backoff, FailOn: c.FailOn, OutageLimit: c.OutageLimit}
}

// BackoffPolicy returns how long a job waits after a failed attempt; job.Attempt counts the failed one. It may be
// called concurrently. A negative wait means no wait.
type BackoffPolicy func(job *outbox.Claimed, err error) time.Duration

// Exponential waits base after the first failure and doubles the wait after each further one, up to limit. Jitter makes
// each wait up to a quarter shorter or longer, also those at limit, so that jobs that failed together do not come back
// together. It panics if limit is not above zero: a forgotten limit would run all attempts at once.
func Exponential(base, limit time.Duration) BackoffPolicy {
	if limit <= 0 {
		panic(fmt.Sprintf("dispatcher: Exponential has the limit %s, want more than 0", limit))
	}
	return func(job *outbox.Claimed, _ error) time.Duration {
		wait := float64(base) * math.Pow(2, float64(max(job.Attempt, 1)-1))
		wait = min(wait, float64(limit))
		wait *= 0.75 + rand.Float64()/2
		if wait >= math.MaxInt64 {
			return math.MaxInt64
		}
		return time.Duration(wait)
	}
}

// Waits waits the given times in turn, without jitter, and repeats the last one. Waits() does not wait at all.
func Waits(delays ...time.Duration) BackoffPolicy {
	return func(job *outbox.Claimed, _ error) time.Duration {
		return outcome.Turn(delays, job.Attempt)
	}
}
