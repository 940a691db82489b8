package dispatcher_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

var errBoom = errors.New("boom")

// durations draws from every order of magnitude.
func durations(most time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(1, max(1, int64(most)>>rapid.IntRange(0, 62).Draw(t, "magnitude"))).Draw(t, "duration"))
	})
}

var attempts = rapid.IntRange(1, math.MaxInt16)

// nominal returns base·factor^n, up to limit.
func nominal(base, limit time.Duration, factor, n int) float64 {
	return min(float64(base)*math.Pow(float64(factor), float64(n)), float64(limit))
}

func TestExponential(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := durations(math.MaxInt64).Draw(t, "limit")
		base := durations(limit).Draw(t, "base")
		attempt := attempts.Draw(t, "attempt")
		got := float64(dispatcher.Exponential(base, limit)(&outbox.Claimed{Attempt: attempt}, errBoom))
		want := nominal(base, limit, 2, attempt-1)
		if got < 0.75*want-1 || got > 1.25*want+1 {
			t.Errorf("Exponential(%s, %s) waits %s after attempt %d, want %s ± 25 %%",
				base, limit, time.Duration(got), attempt, time.Duration(want))
		}
	})
}

func TestExponentialRefusesToRunWithoutALimit(t *testing.T) {
	for _, limit := range []time.Duration{0, -time.Second} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Exponential(1s, %s) was accepted, want a panic: it would wait for nothing", limit)
				}
			}()
			dispatcher.Exponential(time.Second, limit)
		}()
	}
}

func TestExponentialSpreadsWhatFailedTogether(t *testing.T) {
	policy := dispatcher.Exponential(time.Minute, time.Hour)
	waits := map[time.Duration]bool{}
	for range 100 {
		waits[policy(&outbox.Claimed{Attempt: 3}, errBoom)] = true
	}
	if len(waits) < 90 {
		t.Errorf("different waits among 100 = %d, want almost all", len(waits))
	}
}

func TestDelaysRepeatTheLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delays := rapid.SliceOfN(durations(24*time.Hour), 1, 10).Draw(t, "delays")
		attempt := attempts.Draw(t, "attempt")
		got := dispatcher.Waits(delays...)(&outbox.Claimed{Attempt: attempt}, errBoom)
		if want := delays[min(attempt, len(delays))-1]; got != want {
			t.Errorf("Waits(%v) waits %s after attempt %d, want %s", delays, got, attempt, want)
		}
	})
	if got := dispatcher.Waits()(&outbox.Claimed{Attempt: 4}, errBoom); got != 0 {
		t.Errorf("Waits() waits %s, want none", got)
	}
}

// Every claiming statement returns the job's own waits, which take precedence over its kind's; a job without any uses
// those of the kind.
func TestAJobsOwnBackoffIsKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	own := outbox.Options{Backoff: outbox.Backoff{time.Hour, 2 * time.Hour}}
	keyed, tenant, none := own, own, outbox.Options{}
	keyed.Key.Name, tenant.Tenant = "k", outbox.NewID()
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return errBoom },
		dispatcher.KindConfig{Backoff: dispatcher.Waits(time.Minute, 2*time.Minute)}), dispatcher.Config{})
	for name, c := range map[string]struct {
		opts outbox.Options
		want [2]string
	}{
		"plain": {own, [2]string{"01:00:00", "02:00:00"}}, "with a key": {keyed, [2]string{"01:00:00", "02:00:00"}},
		"of a tenant": {tenant, [2]string{"01:00:00", "02:00:00"}}, "of its kind": {none, [2]string{"00:01:00", "00:02:00"}},
	} {
		id := enqueue(t, db, probe{}, c.opts)
		for i, want := range c.want {
			await(t, db, "the attempt fails", `SELECT attempt = $2 AND status = 'retrying' FROM outbox.jobs WHERE id = $1`, id, i+1)
			got := ask[string](t, db, `
				-- The attempt is recorded some microseconds after the statement has begun, from which the wait runs.
				SELECT date_trunc('second', jobs.run_at - attempts.finished_at + interval '0.5 s')::text
				FROM outbox.jobs JOIN outbox.attempts ON attempts.job_id = jobs.id AND attempts.attempt = jobs.attempt
				WHERE jobs.id = $1`, id)
			if got != want {
				t.Errorf("%s: it waits %s after attempt %d, want %s", name, got, i+1, want)
			}
			exec(t, db, `UPDATE outbox.jobs SET run_at = now() WHERE id = $1`, id)
			exec(t, db, `SELECT pg_notify('outbox_jobs', '')`)
		}
	}
}
