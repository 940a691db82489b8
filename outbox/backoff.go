package outbox

import (
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// A Backoff lists how long a job waits after its first failed attempt, after its second one, and so on; the last wait
// then repeats. There are at most 64 waits, each of 0 to 100 years, and no jitter is added. A Backoff takes precedence
// over the backoff policy of the job's kind; a wait that the handler itself asks for (dispatcher.RetryAfter) takes
// precedence over both.
type Backoff []time.Duration

// Exponential returns a backoff without jitter: jobs that failed together come back together. It waits first after the
// first failed attempt and twice as long after each further one, up to limit. dispatcher.Exponential, the policy of a
// kind or a process, varies each wait by up to a quarter. Enqueue refuses a backoff without a limit.
func Exponential(first, limit time.Duration) Backoff {
	if limit <= 0 { // a forgotten limit would otherwise run all attempts at once
		return Backoff{noLimit}
	}
	if first <= 0 || first >= limit {
		return Backoff{min(first, limit)}
	}
	var b Backoff
	for wait := first; wait < limit && len(b) < engine.MaxBackoffs-1; wait *= 2 {
		b = append(b, wait)
		if wait > limit/2 {
			break
		}
	}
	return append(b, limit)
}

// noLimit marks an Exponential without a limit, for validate to refuse.
const noLimit time.Duration = -1

func (b Backoff) validate() error {
	if len(b) == 1 && b[0] == noLimit {
		return invalid("Options.Backoff",
			"waits %s after attempt 1, want 0 to 100 years; Exponential needs a limit above zero", b[0])
	}
	if len(b) > engine.MaxBackoffs {
		return invalid("Options.Backoff", "has %d waits, want at most %d", len(b), engine.MaxBackoffs)
	}
	for i, wait := range b {
		if wait < 0 || wait > engine.MaxDuration {
			return invalid("Options.Backoff", "waits %s after attempt %d, want 0 to 100 years", wait, i+1)
		}
	}
	return nil
}

// text returns the backoff as an array of intervals, in a form that Postgres accepts whatever its settings, or nil for
// none. It is text because not every driver that [FromSQL] accepts can send arrays.
func (b Backoff) text() *string {
	if len(b) == 0 {
		return nil
	}
	waits := make([]string, len(b))
	for i, wait := range b {
		us := wait.Microseconds()
		waits[i] = fmt.Sprintf("%d:%02d:%02d.%06d", us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
	}
	text := "{" + strings.Join(waits, ",") + "}"
	return &text
}
