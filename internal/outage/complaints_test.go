package outage

import (
	"testing"
	"time"
)

func TestComplaintsAreToldOnceInAWhile(t *testing.T) {
	var c Complaints
	start := time.Now()
	for _, step := range []struct {
		after      time.Duration
		what       string
		wantMissed int
		want       bool
	}{
		{0, "claim failed", 0, true},
		{time.Second, "claim failed", 0, false},
		{time.Second, "settle failed", 0, true},
		{2 * time.Second, "claim failed", 0, false},
		{every, "claim failed", 2, true},
		{2 * every, "claim failed", 0, true},
	} {
		if missed, due := c.Due(step.what, start.Add(step.after)); missed != step.wantMissed || due != step.want {
			t.Errorf("%q after %s: told = %v with %d missed, want %v with %d", step.what, step.after, due, missed, step.want, step.wantMissed)
		}
	}
}
