package clock

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/clock/clocktest"
)

func TestElapsed(t *testing.T) {
	t.Parallel()
	a := time.Now()
	for name, c := range map[string]struct {
		slept, suspended, want time.Duration
	}{
		"nothing happened":   {2 * time.Second, 0, 2 * time.Second},
		"it was suspended":   {2 * time.Second, time.Hour, time.Hour + 2*time.Second},
		"set back meanwhile": {2 * time.Second, -time.Hour, 2 * time.Second},
	} {
		b := clocktest.Suspended(a.Add(c.slept), c.suspended)
		if got := b.Sub(a); got != c.slept {
			t.Fatalf("%s: the monotonic clock went on by %v, want %v", name, got, c.slept)
		}
		if got := Elapsed(a, b); got != c.want {
			t.Errorf("%s: %v have elapsed, want %v", name, got, c.want)
		}
		if got := Elapsed(b, a); got != max(-c.slept, -c.slept-c.suspended) {
			t.Errorf("%s: %v have elapsed the other way round", name, got)
		}
	}
}
