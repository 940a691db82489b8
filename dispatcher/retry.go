package dispatcher

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// RetryPolicy says how long a job waits after a failed attempt; job.Attempt
// counts the failed one. It may be called concurrently. A negative wait is none.
type RetryPolicy func(job *outbox.Claimed, err error) time.Duration

// Exponential waits base after the first failure and twice as long after each
// further one, up to limit, with ±25 % of jitter so that what failed together
// does not come back together.
func Exponential(base, limit time.Duration) RetryPolicy {
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

// Delays waits the given times in turn, without jitter, and the last one from
// then on. Delays() is no wait at all.
func Delays(delays ...time.Duration) RetryPolicy {
	return func(job *outbox.Claimed, _ error) time.Duration {
		if len(delays) == 0 {
			return 0
		}
		return delays[min(max(job.Attempt, 1), len(delays))-1]
	}
}

// DecorrelatedJitter draws each wait evenly between base and the smaller of limit
// and base·3^attempt: the spread of the AWS Architecture Blog's decorrelated
// jitter, without having to remember the last wait.
func DecorrelatedJitter(base, limit time.Duration) RetryPolicy {
	return func(job *outbox.Claimed, _ error) time.Duration {
		top := min(float64(limit), float64(base)*math.Pow(3, float64(max(job.Attempt, 1))))
		spread := max(top-float64(base), 0)
		return base + time.Duration(rand.Float64()*spread)
	}
}
