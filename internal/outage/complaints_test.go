package outage

import (
	"strconv"
	"testing"
	"time"
)

func TestComplaintsAreLoggedOnceInAWhile(t *testing.T) {
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

// Texts that others can choose are logged up to a total number, and the rest is counted.
func TestOnlySoManyDifferentComplaintsAreLogged(t *testing.T) {
	c := Complaints{Most: 3}
	start, logged := time.Now(), 0
	for n := range 100 {
		if _, due := c.Due(strconv.Itoa(n), start.Add(time.Duration(n)*time.Millisecond)); due {
			logged++
		}
	}
	if logged != 3 || len(c.logged) != 3 {
		t.Errorf("%d of 100 were told and %d are remembered, want 3", logged, len(c.logged))
	}
	if missed, due := c.Due("0", start.Add(time.Second)); due || missed != 0 {
		t.Errorf("again within the ten seconds: %v, %d missed", due, missed)
	}
	if missed, due := c.Due("new", start.Add(2*every)); !due || missed != 98 {
		t.Errorf("later: told = %v with %d missed, want 97 others and one that was told before", due, missed)
	}
	if missed, due := c.Due("newer", start.Add(2*every)); !due || missed != 0 {
		t.Errorf("and then: told = %v with %d missed", due, missed)
	}
}
