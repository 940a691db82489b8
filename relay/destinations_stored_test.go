package relay

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What is remembered of missing destinations is what the next owner reads, whatever their names are.
func TestMissingDestinationsAreHandedOn(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	first, next := destinations{now: clock}, destinations{now: clock}
	names := []string{"orders", "a\x00b", "\xff", `"\`, "☃", "x?token=s3cret", "x?token=another", "x"}
	if err := first.load("{}"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		first.failed(name, CodeNoDestination)
	}
	now = now.Add(59 * time.Minute)
	if ages := first.ages(); strings.Contains(ages, "s3cret") {
		t.Errorf("what is stored has a secret in it: %s", ages)
	}
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

// A destination that was missing is repaired, which no message shows. Hours later it is missing for a moment: that is
// less than an hour.
func TestADestinationIsMissingAnew(t *testing.T) {
	now := time.Now()
	d := destinations{now: func() time.Time { return now }}
	if err := d.load("{}"); err != nil {
		t.Fatal(err)
	}
	for n, want := range []time.Duration{0, 50 * time.Minute, 100 * time.Minute} {
		if got := d.failed("orders", CodeNoDestination); got != want {
			t.Errorf("at failure %d it is missing for %v, want %v", n, got, want)
		}
		now = now.Add(50 * time.Minute)
	}
	now = now.Add(11 * time.Minute)
	d.changed = false
	if got := d.failed("orders", CodeNoDestination); got != 0 || !d.changed || d.ages() != `{"orders":0}` {
		t.Errorf("it is missing for %v and stored as %s (changed: %t), want anew", got, d.ages(), d.changed)
	}
}

// A silent destination is forgotten when nothing has waited for it for an hour, although none of its messages was
// answered: they may have become jobs, behind a refused one of their key. It is remembered while they wait, tried or
// not, and while they may be behind as many messages as may wait, which rounds do not come past.
func TestASilentDestinationWithoutMessagesIsForgotten(t *testing.T) {
	now := time.Now()
	d := destinations{now: func() time.Time { return now }}
	why := &failure{code: CodeSilent, err: errors.New("no answer")}
	for _, name := range []string{"gone", "waits"} {
		d.silences(name, "id of "+name, false)
		d.silent[name].why = why
		d.shuts(name, why)
	}
	rounds := func() {
		for range 3 {
			d.endRound()
			if d.turn != "waits" && !d.shutUntried("waits") {
				t.Error("two destinations are tried in one round")
			}
			d.shuts("waits", why)
		}
	}
	rounds()
	if !d.isTrial("gone", "id of another message") {
		t.Error("a destination that three rounds have not come to is not silent any more")
	}
	now = now.Add(noDestinationLimit)
	rounds()
	now = now.Add(time.Minute)
	d.endRound()
	if d.silent["gone"] != nil {
		t.Error("a destination for which nothing waits is still silent")
	}
	if d.silent["waits"] == nil {
		t.Error("a destination whose messages wait is not silent any more")
	}
}

// A sink that waits for open transactions shows that, unless its broker accepts nothing, or too many messages wait for
// destinations; an outage of a destination shows again afterwards.
func TestAWaitKeepsTheOutageOfADestination(t *testing.T) {
	p := &publisher{log: slog.New(slog.DiscardHandler)}
	o := ownership{publisher: p, changed: make(chan struct{}, 1)}
	shows := func(want string) {
		t.Helper()
		got := ""
		if why := o.shown(); why != nil {
			got = why.code
		}
		if got != want {
			t.Errorf("the sink shows %q, want %q", got, want)
		}
	}
	o.setOutage(&away{code: CodeFull})
	o.wait(true)
	shows(CodeHoles)
	o.setOutage(&away{code: CodeUnavailable})
	shows(CodeUnavailable)
	o.setOutage(&away{code: CodeWaiting})
	shows(CodeWaiting)
	o.setOutage(&away{code: CodeFull})
	o.wait(false)
	shows(CodeFull)
	o.setOutage(nil)
	shows("")
}
