package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/clock/clocktest"
)

// While a machine is suspended, its monotonic clock stands still, and another process takes its sinks over.
func TestALeaseLapsesWhileTheMachineIsSuspended(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(time.Minute)
	for name, c := range map[string]struct {
		until time.Time
		want  bool
	}{
		"awake":     {until, true},
		"suspended": {clocktest.Suspended(until, -time.Hour), false}, // for an hour until now
		"lapsed":    {until.Add(-2 * time.Minute), false},
	} {
		o := &ownership{until: c.until}
		if got := o.isOurs(); got != c.want {
			t.Errorf("%s: the sink is ours: %t, want %t", name, got, c.want)
		}
	}
}

// What a lease that ends far in the future says depends on a bound.
func TestALeaseHasABound(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]bool{0: true, time.Second: true, 5 * time.Minute: true, 6 * time.Minute: false, time.Millisecond: false} {
		if err := (Config{LeaseTTL: ttl}).withDefaults().validate(); strings.Contains(fmt.Sprint(err), "LeaseTTL") == want {
			t.Errorf("a lease of %v: %v", ttl, err)
		}
	}
}
