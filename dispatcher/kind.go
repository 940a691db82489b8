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

// minTimeout is the least timeout of a process or a kind: less is a number that lacks its unit.
const minTimeout = time.Millisecond

// KindConfig configures the attempts of one kind. The zero value takes the dispatcher's defaults.
type KindConfig struct {
	Timeout time.Duration // of one attempt; 0 means Config.Timeout. A job's own Options.Timeout takes precedence
	Backoff BackoffPolicy // nil means Config.Backoff. A job's own Options.Backoff takes precedence

	// FailOn lists error codes that fail a job for good, as [Discard] does, however many attempts are left. All other
	// errors are retried up to the job's own Options.MaxAttempts. FailOn does not apply to a lost lease: no handler was
	// there to fail.
	FailOn []string
	// OutageLimit is how long [Unavailable] spends no attempts, counted from the first such outcome in a row. 0 means
	// 24 h; with a negative limit every such outcome spends an attempt.
	OutageLimit time.Duration
}

// Validate returns every mistake as an [*outbox.InvalidError] that names the field. [New] calls it for every kind.
func (c KindConfig) Validate() error {
	var errs []error
	if c.Timeout != 0 && c.Timeout < minTimeout || c.Timeout > engine.MaxDuration {
		errs = append(errs, invalid.Field("KindConfig.Timeout",
			"is %s, want %s to 100 years, or 0 for that of the process", c.Timeout, minTimeout))
	}
	for _, code := range c.FailOn {
		if code == "" || len(code) > engine.MaxNameBytes { // no failure is stored with such a code
			errs = append(errs, invalid.Field("KindConfig.FailOn", "has the code %q, want 1 to %d bytes", code,
				engine.MaxNameBytes))
		}
	}
	return errors.Join(errs...)
}

// policy returns the kind's settings for deciding outcomes.
func (c KindConfig) policy() outcome.Policy {
	return outcome.Policy{Backoff: c.Backoff, FailOn: c.FailOn, OutageLimit: c.OutageLimit}
}

// BackoffPolicy returns how long a job waits after a failed attempt; job.Attempt counts the failed one. It may be
// called concurrently. A negative wait means no wait.
type BackoffPolicy func(job *outbox.Claimed, err error) time.Duration

// Exponential waits base after the first failure and doubles the wait after each further one, up to limit. Jitter makes
// each wait up to a quarter shorter or longer, also those at limit, so that jobs that failed together do not come back
// together.
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

// Waits waits the given times in turn, without jitter, and repeats the last one. Waits() does not wait at all.
func Waits(delays ...time.Duration) BackoffPolicy {
	return func(job *outbox.Claimed, _ error) time.Duration {
		return outcome.Turn(delays, job.Attempt)
	}
}
