package relay

import (
	"testing"
	"time"
)

// What is remembered of missing destinations is what the next owner reads, whatever their names are.
func TestMissingDestinationsAreHandedOn(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	first, next := destinations{now: clock}, destinations{now: clock}
	names := []string{"orders", "a\x00b", "\xff", `"\`, "☃"}
	if err := first.load("{}"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		first.failed(name, CodeNoDestination)
	}
	now = now.Add(59 * time.Minute)
	if err := next.load(first.ages()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	for _, name := range names {
		if since := next.failed(name, CodeNoDestination).Round(time.Second); since != 61*time.Minute {
			t.Errorf("%q is missing for %v, want 61 minutes", name, since)
		}
		next.changed = false
		next.reached(name, "")
		if !next.changed {
			t.Errorf("that %q is there again is not stored", name)
		}
	}
	if left := next.ages(); left != "{}" {
		t.Errorf("%s are missing, and all were reached", left)
	}
}

// That open transactions have ended does not hide that a destination accepts nothing.
func TestTheEndOfAWaitKeepsTheOutageOfADestination(t *testing.T) {
	o := ownership{changed: make(chan struct{}, 1), away: &away{code: CodeFull}}
	o.wait(false)
	if o.outage() == nil {
		t.Error("the outage of the destination is forgotten")
	}
	o.away = &away{code: CodeHoles}
	o.wait(false)
	if o.outage() != nil {
		t.Error("the sink shows that it waits")
	}
}
