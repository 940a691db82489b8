package schedule

import (
	"errors"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// Many processes, a tick a second, and one of them killed in between: every tick
// has one job.
func TestManyProcessesFireEachTickOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	every := Every("second", time.Second, reportArgs{}, Options{Missed: All, MissedLimit: 1000})
	var stops []func()
	for range 4 {
		s, err := New(db, Config{Schedules: []Schedule{every}})
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, run(t, s))
	}
	fired := func() int { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) }
	await(t, "the first tick", func() bool { return fired() >= 1 })
	stops[0]()
	stops[1]()
	await(t, "a third tick", func() bool { return fired() >= 3 })
	for _, stop := range stops {
		stop()
	}
	gaps := ask[int](t, db, `
		SELECT count(*) FROM (
		    SELECT at - lag(at) OVER (ORDER BY at) AS step FROM (SELECT (headers ->> 'scheduled_for')::timestamptz AS at FROM outbox.jobs) AS ticks
		) AS steps WHERE step <> interval '1 second'`)
	if gaps != 0 {
		t.Errorf("ticks %v: %d of them are not a second after the one before", firedFor(t, db, "second"), gaps)
	}
}

func TestAnIdleSchedulerAsksLittle(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("s", 1000*time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	wait, err := s.round(t.Context())
	if err != nil || wait < pollInterval/2 {
		t.Errorf("sleeps %s, %v; want about %s", wait, err, pollInterval)
	}
	// Close to a tick it sleeps until then, and no longer.
	exec(t, db, `UPDATE outbox.schedules SET next_at = now() + interval '9 seconds'`)
	if wait, err = s.round(t.Context()); err != nil || wait > 9*time.Second || wait < time.Second {
		t.Errorf("sleeps %s, %v; want up to 9s", wait, err)
	}
	if latest := pollInterval * 5 / 4; latest > lateAfter-5*time.Second {
		t.Errorf("what was resumed is noticed after up to %s: a tick is missed after %s", latest, lateAfter)
	}
	if 2*asideFor > lateAfter-5*time.Second {
		t.Errorf("what was refused is tried again after %s: a tick is missed after %s", asideFor, lateAfter)
	}
	// A far year is no time.Duration.
	exec(t, db, `UPDATE outbox.schedules SET next_at = '9999-01-01'`)
	if wait, err = s.round(t.Context()); err != nil || wait < pollInterval/2 || wait > 2*pollInterval {
		t.Errorf("sleeps %s, %v; want about %s", wait, err, pollInterval)
	}
}

func TestWhatAnotherFiresIsLookedAtAgainSoon(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("s", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	age(t, db, "s", time.Hour)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	exec(t, tx, `SELECT FROM outbox.schedules FOR UPDATE`)
	if wait, err := s.round(t.Context()); err != nil || wait < yieldInterval/2 || wait > 2*yieldInterval {
		t.Errorf("sleeps %s, %v; want about %s", wait, err, yieldInterval)
	}
}

func TestASchedulerWaitsForItsTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, err := New(db, Config{Schedules: []Schedule{Every("s", time.Second, reportArgs{}, Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ready() == nil {
		t.Error("ready before Run")
	}
	exec(t, db, `ALTER TABLE outbox.schedules RENAME TO hidden`)
	run(t, s)
	await(t, "it says what is wrong", func() bool { err := s.Ready(); return err != nil && pgsession.State(err) == "42P01" })
	exec(t, db, `ALTER TABLE outbox.hidden RENAME TO schedules`)
	await(t, "it is ready", func() bool { return s.Ready() == nil })
	await(t, "it fires", func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) > 0 })
	if err := s.Run(t.Context()); err == nil {
		t.Error("a second Run has no error")
	}
}

func TestWhoIsToBlame(t *testing.T) {
	t.Parallel()
	for err, outage := range map[error]bool{errors.New("broken pipe"): true, invalid.Field("Options.Queue", "is odd"): false} {
		if got := isOutage(err); got != outage {
			t.Errorf("isOutage(%v) = %t, want %t", err, got, outage)
		}
	}
}
