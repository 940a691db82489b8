package dispatcher

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The pages state the defaults of the code: how retries are spaced, how many attempts a job has, and how many jobs of a
// queue run at once.
func TestPagesStateTheDefaults(t *testing.T) {
	t.Parallel()
	policy := Config{}.withDefaults().Backoff
	first, jitter := spread(policy, 1)
	last, _ := spread(policy, engine.DefaultMaxAttempts)
	var dead time.Duration
	for attempt := range engine.DefaultMaxAttempts - 1 {
		wait, _ := spread(policy, attempt+1)
		dead += wait
	}
	hours := math.Round(dead.Hours())
	for page, want := range map[string][]string{
		"guides/retries.md": {
			fmt.Sprintf("by default after %.0f s, doubling up to %.0f h, each wait with ±%.0f %% of jitter (so at most %.0f minutes)",
				first.Seconds(), last.Hours(), jitter*100, last.Minutes()*(1+jitter)),
			fmt.Sprintf("`Options.MaxAttempts` (%d by default)", engine.DefaultMaxAttempts),
			fmt.Sprintf("dead after about %.0f hours", hours),
		},
		"why/faq.md": {
			fmt.Sprintf("Exponentially from %.0f s to %.0f h, ±%.0f %% jitter, %d attempts: a job that always fails is dead after about %.0f hours.",
				first.Seconds(), last.Hours(), jitter*100, engine.DefaultMaxAttempts, hours),
			fmt.Sprintf("%d for each queue of each process", defaultConcurrency),
		},
		"guides/handlers.md": {
			fmt.Sprintf("by default up to %d for each queue", defaultConcurrency),
			fmt.Sprintf("| `dispatcher.QueueConfig.Concurrency` | %d |", defaultConcurrency),
			fmt.Sprintf("| `outbox.Options.MaxAttempts` | %d |", engine.DefaultMaxAttempts),
		},
	} {
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, stated := range want {
			if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), stated) {
				t.Errorf("docs/%s does not state: %s", page, stated)
			}
		}
	}
}

// spread returns the middle of the waits after an attempt, to a hundredth, and how far they are from it at most, as a
// part of it.
func spread(policy BackoffPolicy, attempt int) (middle time.Duration, jitter float64) {
	job := &outbox.Claimed{Attempt: attempt}
	shortest, longest := policy(job, nil), time.Duration(0)
	for range 10_000 {
		wait := policy(job, nil)
		shortest, longest = min(shortest, wait), max(longest, wait)
	}
	middle = ((shortest + longest) / 2).Round((shortest + longest) / 200)
	return middle, math.Round(100*float64(longest-shortest)/2/float64(middle)) / 100
}
