package console

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// lives are lives of a job, in seconds after it was created, and what its timeline has to show of them.
var lives = map[string]struct {
	job  operator.Job
	ends int // when it ended, or now
	want []string
}{
	"a retry, then success": {
		closedAs(outbox.Succeeded, 2, 20, 25, failedAttempt(1, 1, 4, "smtp")), 25,
		[]string{"wait 1s", "failed 3s", "wait 16s", "ok 5s"},
	},
	"a snooze": {
		closedAs(outbox.Succeeded, 1, 61, 62, failedAttempt(1, 0, 1, "snoozed")), 62,
		[]string{"failed 1s", "wait 1m0s", "ok 1s"},
	},
	"a lost lease": {
		closedAs(outbox.Succeeded, 1, 40, 41, failedAttempt(1, 2, 32, "lease_lost")), 41,
		[]string{"wait 2s", "lost 30s", "wait 8s", "ok 1s"},
	},
	"cancelled while it waits":     {closedAs(outbox.Cancelled, 0, -1, 9), 9, []string{"wait 9s"}},
	"cancelled while it runs":      {closedAs(outbox.Cancelled, 1, 3, 9), 9, []string{"wait 3s", "lost 6s"}},
	"expired after an attempt":     {closedAs(outbox.Expired, 1, 3, 30, failedAttempt(1, 3, 5, "smtp")), 30, []string{"wait 3s", "failed 2s", "wait 25s"}},
	"dead, and waits for a person": {opened(outbox.Dead, 1, 3, failedAttempt(1, 3, 5, "smtp")), 50, []string{"wait 3s", "failed 2s", "wait 45s open"}},
	"dead, edited, runs again": {
		opened(outbox.Running, 1, 70, failedAttempt(1, 3, 5, "smtp")), 75,
		[]string{"wait 3s", "failed 2s", "wait 1m5s", "run 5s open"},
	},
	"an attempt of a clock that went back": {closedAs(outbox.Succeeded, 1, 4, 3), 3, []string{"wait 4s", "ok 0s"}},
}

func at(seconds int) time.Time {
	return time.Date(2027, 1, 31, 9, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

func failedAttempt(n, from, to int, code string) operator.Attempt {
	return operator.Attempt{Attempt: n, StartedAt: at(from), FinishedAt: at(to), ErrorCode: code}
}

func opened(s outbox.Status, attempt, started int, failed ...operator.Attempt) (j operator.Job) {
	j.Status, j.Attempt, j.CreatedAt = s, attempt, at(0)
	if started >= 0 {
		j.StartedAt = at(started)
	}
	slices.Reverse(failed) // the newest first, as they are read
	j.Attempts = failed
	return j
}

func closedAs(s outbox.Status, attempt, started, finished int, failed ...operator.Attempt) operator.Job {
	j := opened(s, attempt, started, failed...)
	j.FinishedAt = at(finished)
	return j
}

// The spans of a job's life are what happened to it, none is negative, and together they are as long as it has lived.
func TestTimelinesShowScriptedLives(t *testing.T) {
	t.Parallel()
	for name, life := range lives {
		var got []string
		var sum time.Duration
		for _, s := range timeline(life.job, at(life.ends)) {
			text := fmt.Sprintf("%s %s", s.class, s.took)
			if s.open {
				text += " open"
			}
			got, sum = append(got, text), sum+s.took
			if s.took < 0 {
				t.Errorf("%s: a span takes %s", name, s.took)
			}
		}
		if !slices.Equal(got, life.want) {
			t.Errorf("%s: got %q, want %q", name, got, life.want)
		}
		if want := at(life.ends).Sub(at(0)); sum != want && name != "an attempt of a clock that went back" {
			t.Errorf("%s: the spans take %s together, want %s", name, sum, want)
		}
	}
}

// The ticks on a schedule's page are those of the schedule, over both changes of the clocks.
func TestTicksAreThoseOfTheSchedule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression, zone, after string
		want                    []string
	}{
		{"30 2 * * *", "Europe/Berlin", "2027-03-26T12:00:00Z", []string{"2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z", "2026-11-03T06:30:00Z"}},
	} {
		after, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		declared := schedule.Cron("s", c.expression, c.zone, stored("k"), schedule.Options{})
		first, err := declared.Next(after)
		if err != nil {
			t.Fatal(err)
		}
		s := operator.Schedule{Name: "s", Kind: "k", Expression: c.expression, Zone: c.zone, NextAt: first}
		ticks := ticksOf(s, after)
		if len(ticks) != nextTicks {
			t.Fatalf("%s: %d ticks, want %d", c.zone, len(ticks), nextTicks)
		}
		for n, at := 0, after; n < len(ticks); n++ {
			if at, err = declared.Next(at); err != nil || !ticks[n].Equal(at) {
				t.Errorf("%s: tick %d is at %s, the schedule's at %s, %v", c.zone, n, ticks[n], at, err)
			}
			if n < len(c.want) && ticks[n].UTC().Format(time.RFC3339) != c.want[n] {
				t.Errorf("%s: tick %d is at %s, want %s", c.zone, n, ticks[n].UTC(), c.want[n])
			}
		}
		s.PausedSince = after
		if paused := ticksOf(s, after); !slices.EqualFunc(paused, ticks, time.Time.Equal) {
			t.Errorf("%s: paused, the ticks would be %v, want %v", c.zone, paused, ticks)
		}
	}
}
