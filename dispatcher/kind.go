package dispatcher

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// KindConfig is how one kind is attempted. The zero value takes the dispatcher's
// defaults.
type KindConfig struct {
	Timeout time.Duration // of one attempt; 0 is Config.Timeout. A job's own Options.Timeout comes first
	Backoff BackoffPolicy // nil is Config.Backoff. A job's own Options.Backoff comes first

	// FailOn are error codes that fail a job for good, as [Discard] does, whatever
	// attempts are left; its own Options.MaxAttempts is for all others. A lost lease
	// is not among them: no handler was there to fail.
	FailOn []string
	// OutageLimit is how long [Unavailable] spends no attempts, from the first of a row of such outcomes.
	// 0 means 24 h. A negative value makes Unavailable spend an attempt like any other error.
	OutageLimit time.Duration
}

// Validate returns every mistake, as [*outbox.InvalidError]s that name the field. [New]
// asks it of every kind.
func (c KindConfig) Validate() error {
	var errs []error
	if c.Timeout < 0 || c.Timeout > engine.MaxDuration {
		errs = append(errs, invalid.Field("KindConfig.Timeout", "is %s, want up to 100 years, or 0 for that of the process", c.Timeout))
	}
	for _, code := range c.FailOn {
		if code == "" || len(code) > engine.MaxNameBytes { // no failure is stored with such a code
			errs = append(errs, invalid.Field("KindConfig.FailOn", "has the code %q, want 1 to %d bytes", code, engine.MaxNameBytes))
		}
	}
	return errors.Join(errs...)
}

// policy is what the kind says of its attempts.
func (c KindConfig) policy() outcome.Policy {
	return outcome.Policy{Backoff: c.Backoff, FailOn: c.FailOn, OutageLimit: c.OutageLimit}
}

// BackoffPolicy says how long a job waits after a failed attempt; job.Attempt
// counts the failed one. It may be called concurrently. A negative wait is none.
type BackoffPolicy func(job *outbox.Claimed, err error) time.Duration

// Exponential waits base after the first failure and twice as long after each
// further one, up to limit. Jitter makes each wait up to a quarter shorter or longer, the longest too,
// so that jobs that failed together do not all come back together.
func Exponential(base, limit time.Duration) BackoffPolicy {
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

// Waits waits the given times in turn, without jitter, and the last one from
// then on. Waits() is no wait at all.
func Waits(delays ...time.Duration) BackoffPolicy {
	return func(job *outbox.Claimed, _ error) time.Duration {
		return outcome.Turn(delays, job.Attempt)
	}
}
