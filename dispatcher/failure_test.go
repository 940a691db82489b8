package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

var errAway = errors.New("connection refused")

func unavailableParams(l lease, otherwise outbox.Status, limit time.Duration) sqlgen.SettleUnavailableParams {
	return sqlgen.SettleUnavailableParams{
		Worker: "worker", Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(),
		OutageLimits: []pgtype.Interval{interval(limit)}, Waits: []pgtype.Interval{{}},
		Statuses: []string{string(otherwise)}, Delays: []pgtype.Interval{interval(0)},
		ErrorCodes: []string{"away"}, ErrorMessages: []string{"connection refused"}, Stacks: []string{""}, Fingerprints: []string{"f"},
	}
}

func TestAnOutageSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{1}, outbox.Options{MaxAttempts: 1})
	wake := make(chan struct{}, 1)
	tries := make(chan int, 100)
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		tries <- job.Attempt
		if len(tries) < 5 {
			return fmt.Errorf("send: %w", dispatcher.Unavailable(dispatcher.WithCode("smtp_away", errAway), time.Millisecond))
		}
		return nil
	}), quiet(wake))
	awaitSucceeded(t, db, 1)
	for range 5 {
		if attempt := <-tries; attempt != 1 {
			t.Errorf("attempt = %d, want 1: an outage spends none", attempt)
		}
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE job_id = $1`, id); n != 0 {
		t.Errorf("failed attempts on record = %d, want none", n)
	}
	if code := ask[string](t, db, `SELECT last_error_code FROM outbox.history WHERE id = $1`, id); code != "smtp_away" {
		t.Errorf("the job's last error is %q, want smtp_away", code)
	}
}

// outageOf holds the database's columns of a job that was settled as unavailable.
type outageOf struct {
	status          string
	attempt         int
	attempts        int // on record
	since, dead     bool
	waits, recorded bool
}

func lookAtOutage(t *testing.T, db *pgxpool.Pool, id outbox.ID) (o outageOf) {
	t.Helper()
	err := db.QueryRow(t.Context(), `
		SELECT status::text, attempt, (SELECT count(*) FROM outbox.attempts WHERE job_id = jobs.id), unavailable_since IS NOT NULL,
			failed_at IS NOT NULL AND error_fingerprint = 'f', run_at > now(), last_error_code = 'away'
		FROM outbox.jobs WHERE id = $1`, id).Scan(&o.status, &o.attempt, &o.attempts, &o.since, &o.dead, &o.waits, &o.recorded)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// The outage is counted from the first outcome in a row; from the limit on each attempt counts, and the limit does not
// start again.
func TestAnOutageHasALimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lasted    string // '' for the first time
		otherwise outbox.Status
		want      outageOf
	}{
		"the first time":       {"", outbox.Retrying, outageOf{"retrying", 0, 0, true, false, true, true}},
		"within the limit":     {"59 minutes", outbox.Dead, outageOf{"retrying", 0, 0, true, false, true, true}},
		"beyond the limit":     {"61 minutes", outbox.Retrying, outageOf{"retrying", 1, 1, true, false, false, true}},
		"on the last try":      {"61 minutes", outbox.Dead, outageOf{"dead", 1, 1, false, true, false, true}},
		"with a backset clock": {"-10 minutes", outbox.Retrying, outageOf{"retrying", 0, 0, true, false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id := enqueue(t, db, probe{1}, outbox.Options{})
			l := claim(t, db, "worker")
			exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now() - nullif($1, '')::interval`, c.lasted)
			rows, err := sqlgen.New(db).SettleUnavailable(t.Context(), unavailableParams(l, c.otherwise, time.Hour))
			if err != nil || len(rows) != 1 || rows[0].Status != c.want.status {
				t.Fatalf("settled as %v, %v, want %s", rows, err, c.want.status)
			}
			if got := lookAtOutage(t, db, id); got != c.want {
				t.Errorf("the job is %+v, want %+v", got, c.want)
			}
		})
	}
}

// Two outcomes in a row have one beginning.
func TestALongOutageReachesItsLimit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{1}, outbox.Options{})
	var since [2]time.Time
	for i := range since {
		l := claim(t, db, "worker")
		if _, err := sqlgen.New(db).SettleUnavailable(t.Context(), unavailableParams(l, outbox.Retrying, time.Hour)); err != nil {
			t.Fatal(err)
		}
		exec(t, db, `UPDATE outbox.jobs SET run_at = now()`)
		since[i] = ask[time.Time](t, db, `SELECT unavailable_since FROM outbox.jobs`)
	}
	if !since[1].Equal(since[0]) {
		t.Errorf("the outage began anew: at %s, then at %s", since[0], since[1])
	}
}

func TestAnUnaskedWaitGrowsWithTheOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for lasted, bounds := range map[string][2]time.Duration{
		"0 seconds":  {750 * time.Millisecond, 1250 * time.Millisecond},
		"40 seconds": {30 * time.Second, 51 * time.Second},
		"10 hours":   {225 * time.Second, 375 * time.Second},
	} {
		id := enqueue(t, db, probe{1}, outbox.Options{})
		l := claim(t, db, "worker")
		exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now() - $1::interval WHERE id = $2`, lasted, id)
		if _, err := sqlgen.New(db).SettleUnavailable(t.Context(), unavailableParams(l, outbox.Retrying, 24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		// Two statements' clocks differ: the settlement was before this one.
		wait := ask[time.Duration](t, db, `SELECT run_at - started_at FROM outbox.jobs WHERE id = $1`, id)
		if wait < bounds[0] || wait > bounds[1]+patience {
			t.Errorf("after %s the job waits %s, want %s to %s", lasted, wait, bounds[0], bounds[1])
		}
	}
}

// Which outcomes end a row of outages, and which do not.
func TestOnlyAnOutcomeEndsAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status outbox.Status
		delay  pgtype.Interval
		code   string
		still  bool
	}{
		"failed":      {outbox.Failed, pgtype.Interval{}, "boom", false},
		"retrying":    {outbox.Retrying, interval(0), "boom", false},
		"snoozed":     {outbox.Pending, interval(0), "", false},
		"interrupted": {outbox.Pending, pgtype.Interval{}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id := enqueue(t, db, probe{1}, outbox.Options{})
			l := claim(t, db, "worker")
			exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now()`)
			_, err := sqlgen.New(db).SettleUnfinished(t.Context(), sqlgen.SettleUnfinishedParams{
				Worker: "worker", Ids: []pgtype.UUID{pgID(id)}, Epochs: []int64{l.epoch}, Statuses: []string{string(c.status)},
				Delays: []pgtype.Interval{c.delay}, ErrorCodes: []string{c.code}, ErrorMessages: []string{c.code}, Stacks: []string{""},
			})
			if err != nil {
				t.Fatal(err)
			}
			if still := ask[bool](t, db, `SELECT unavailable_since IS NOT NULL FROM outbox.jobs`); still != c.still {
				t.Errorf("the outage goes on = %t, want %t", still, c.still)
			}
		})
	}
}

func TestKindsJudgeFailures(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom 7")
	for name, c := range map[string]struct {
		config   dispatcher.KindConfig
		attempts int
		err      error
		status   string
		code     string
		message  string
	}{
		"a code that fails for good":       {dispatcher.KindConfig{FailOn: []string{"gone", "spent"}}, 5, dispatcher.WithCode("spent", boom), "failed", "spent", "boom 7"},
		"a code that does not":             {dispatcher.KindConfig{FailOn: []string{"gone"}}, 1, dispatcher.WithCode("spent", boom), "dead", "spent", "boom 7"},
		"an outage that fails for good":    {dispatcher.KindConfig{FailOn: []string{"gone"}}, 5, dispatcher.Unavailable(dispatcher.WithCode("gone", boom), 0), "failed", "gone", "boom 7"},
		"an outage that is not spared":     {dispatcher.KindConfig{OutageLimit: -1}, 1, dispatcher.Unavailable(boom, 0), "dead", "error", "boom 7"},
		"a panic that fails for good":      {dispatcher.KindConfig{FailOn: []string{codes.Panic}}, 5, nil, "failed", "panic", "panic: boom 7"},
		"a discarded outage":               {dispatcher.KindConfig{}, 5, dispatcher.Discard(dispatcher.Unavailable(boom, 0)), "failed", "error", "boom 7"},
		"an outage without an error, over": {dispatcher.KindConfig{OutageLimit: time.Nanosecond, Backoff: dispatcher.Waits()}, 2, dispatcher.Unavailable(nil, 0), "dead", "error", "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id := enqueue(t, db, probe{1}, outbox.Options{MaxAttempts: c.attempts})
			exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now() - interval '1 second'`)
			start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
				if c.err == nil {
					panic(boom)
				}
				return c.err
			}, c.config), quiet(nil))
			await(t, db, "the job is a dead letter", `SELECT status IN ('failed', 'dead') FROM outbox.jobs WHERE id = $1`, id)
			var status, code, message, print string
			var failed bool
			err := db.QueryRow(t.Context(), `SELECT status::text, last_error_code, last_error_message, error_fingerprint, failed_at IS NOT NULL FROM outbox.jobs`).
				Scan(&status, &code, &message, &print, &failed)
			if err != nil || status != c.status || code != c.code || message != c.message || !failed {
				t.Errorf("the job is %s, %s: %q, %v; want %s, %s: %q", status, code, message, err, c.status, c.code, c.message)
			}
			if want := fingerprint.Of("probe", c.code, c.message); print != want {
				t.Errorf("fingerprint = %q, want %q", print, want)
			}
		})
	}
}
