package lease

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/clock/clocktest"
)

// A machine that was suspended trusts leases that have lapsed meanwhile, by its monotonic clock. The database is asked
// first of all, as after any extension that is late.
func TestASuspendedMachineExtendsItsLeasesAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	soon, renewBelow := now.Add(2*time.Second), 36*time.Second
	for name, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"awake":               {soon, false},
		"suspended":           {clocktest.Suspended(soon, time.Hour), true},
		"its clock set back":  {clocktest.Suspended(soon, -time.Hour), false},
		"a third is used":     {now.Add(20 * time.Second), true},
		"that, and set back":  {clocktest.Suspended(now.Add(20*time.Second), -time.Hour), true},
		"suspended in a blip": {clocktest.Suspended(soon, time.Second), false},
	} {
		l := &Lease{until: now.Add(54 * time.Second)}
		if got := l.needsExtension(c.now, renewBelow); got != c.want {
			t.Errorf("%s: the lease needs to be extended: %t, want %t", name, got, c.want)
		}
		if l.lapsed(c.now) {
			t.Errorf("%s: the handler is stopped, and the database has not said a word", name)
		}
		if late := l.extended(c.now, c.now); late != (name == "suspended") {
			t.Errorf("%s: the extension is late: %t", name, late)
		}
	}
}
