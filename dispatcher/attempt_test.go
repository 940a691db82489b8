package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func explode() error { panic("boom\x00\xff") }

func TestPanicIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{1}, outbox.Options{})
	quietOne := enqueue(t, db, probe{2}, outbox.Options{})
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 1 {
			return explode()
		}
		return nil
	}), config)
	await(t, db, "both are settled", `SELECT count(*) = 1 AND (SELECT count(*) = 1 FROM outbox.history) FROM outbox.jobs WHERE status = 'retrying'`)
	wantState(t, db, id, "retrying attempt=1 epoch=2 lost=0 error=panic")
	wantState(t, db, quietOne, "succeeded attempt=1 epoch=1 lost=0 error=")
	got := ask[string](t, db, `SELECT error_code || ' ' || error_message FROM outbox.attempts WHERE job_id = $1 AND epoch = 1 AND attempt = 1`, id)
	if want := "panic panic: boom\uFFFD\uFFFD"; got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
	stack := ask[string](t, db, `SELECT stack FROM outbox.attempts WHERE job_id = $1`, id)
	if !strings.Contains(stack, "dispatcher_test.explode") {
		t.Errorf("the stack does not show where it happened:\n%s", stack)
	}
}

// The result of a handler determines what becomes of its job.
func TestOutcomesAreStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cases := []struct {
		name     string
		handler  func(attempt int) error
		want     string
		attempts int    // rows in outbox.attempts
		due      string // run_at, as SQL
	}{
		{
			"discard", func(int) error { return dispatcher.Discard(errBoom) },
			"failed attempt=1 epoch=2 lost=0 error=error", 1, "run_at <= now()",
		},
		{
			"retry after", func(int) error { return dispatcher.RetryAfter(2*time.Hour, errBoom) },
			"retrying attempt=1 epoch=2 lost=0 error=error", 1, "run_at BETWEEN now() + '115 minutes' AND now() + '121 minutes'",
		},
		{
			"snooze", func(int) error { return dispatcher.Snooze(3 * time.Hour) },
			"pending attempt=0 epoch=2 lost=0 error=", 0, "run_at BETWEEN now() + '175 minutes' AND now() + '181 minutes'",
		},
		{
			"error", func(int) error { return errBoom },
			"retrying attempt=1 epoch=2 lost=0 error=error", 1, "run_at BETWEEN now() + '55 minutes' AND now() + '61 minutes'",
		},
		{
			"exhausted", func(int) error { return dispatcher.RetryAfter(0, errBoom) },
			"dead attempt=3 epoch=6 lost=0 error=error", 3, "run_at <= now()",
		},
		{"snoozed often", func() func(int) error {
			snoozes := 0
			return func(attempt int) error {
				if snoozes++; snoozes <= 5 {
					return dispatcher.Snooze(0)
				}
				return dispatcher.Discard(fmt.Errorf("attempt %d", attempt))
			}
		}(), "failed attempt=1 epoch=12 lost=0 error=error", 1, "run_at <= now()"},
	}
	var ids []outbox.ID
	for n := range cases {
		ids = append(ids, enqueue(t, db, probe{n}, outbox.Options{MaxAttempts: 3}))
	}
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		return cases[job.Args.N].handler(job.Attempt)
	}), config)
	for n, c := range cases {
		awaitThat(t, c.name+" is "+c.want, func() bool {
			return state(t, db, ids[n]) == c.want || t.Failed()
		})
		if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE job_id = $1`, ids[n]); n != c.attempts {
			t.Errorf("%s: recorded attempts = %d, want %d", c.name, n, c.attempts)
		}
		if !ask[bool](t, db, `SELECT `+c.due+` FROM outbox.jobs WHERE id = $1`, ids[n]) {
			t.Errorf("%s: due at %v, want %s", c.name, ask[time.Time](t, db, `SELECT run_at FROM outbox.jobs WHERE id = $1`, ids[n]), c.due)
		}
	}
}

// Whatever text an error has, it is stored, and so are the other outcomes of its batch.
func TestOddErrorsDoNotPoisonTheBatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	odd := []error{
		errors.New("nul \x00 within"),
		errors.New("not UTF-8: \xff\xfe"),
		errors.New("cut within a rune: " + strings.Repeat("ö", 1<<20)),
		errors.New(strings.Repeat("\x00", 100_000)),
		coded{"code \x00\xff" + strings.Repeat("x", 10_000)},
		coded{""},
		errors.New(""),
		dispatcher.Discard(errors.New("\x00")),
		dispatcher.RetryAfter(time.Duration(1<<63-1), errors.New("in 292 years")),
		dispatcher.Snooze(time.Duration(1<<63 - 1)),
	}
	enqueueProbes(t, db, len(odd)+20, outbox.Options{})
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N < len(odd) {
			return odd[job.Args.N]
		}
		return nil
	}), config)
	await(t, db, "all are settled", `SELECT count(*) = 20 AND NOT EXISTS (SELECT FROM outbox.jobs WHERE epoch <> 2) FROM outbox.history`)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != len(odd)-1 {
		t.Errorf("recorded attempts = %d, want %d", n, len(odd)-1)
	}
	if size := ask[int](t, db, `SELECT max(octet_length(error_message) + octet_length(error_code)) FROM outbox.attempts`); size > 16<<10 {
		t.Errorf("longest error stored = %d bytes", size)
	}
	d.stop(t)
	if strings.Contains(d.log.String(), "settle failed") {
		t.Errorf("a batch was refused:\n%s", d.log.complaints())
	}
}

type coded struct{ code string }

func (coded) Error() string  { return "coded" }
func (c coded) Code() string { return c.code }
