package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
	"github.com/posthaste-dev/posthaste/schedule"
)

func TestAdvanceDoesWhatBecomesDueInItsOrder(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	var w *outboxtest.Worker
	began := time.Now()
	var got []string
	mux := handle(func(_ context.Context, job *outbox.Job[receipt]) error {
		got = append(got, fmt.Sprintf("%d after %s", job.Args.Order, w.Now().Sub(began).Round(time.Minute)))
		if job.Args.Order == 1 && job.Attempt < 3 {
			return errors.New("down")
		}
		return nil
	}, dispatcher.KindConfig{Backoff: dispatcher.Waits(10*time.Hour, 20*time.Hour)})
	enqueue(t, db, receipt{Order: 1}, outbox.Options{})
	enqueue(t, db, receipt{Order: 2}, outbox.Options{Delay: 15 * time.Hour})
	enqueue(t, db, receipt{Order: 3}, outbox.Options{RunAt: began.Add(47 * time.Hour)})
	enqueue(t, db, receipt{Order: 4}, outbox.Options{Delay: 49 * time.Hour})
	enqueue(t, db, receipt{Order: 5}, outbox.Options{Delay: 15 * time.Hour, Deadline: began.Add(12 * time.Hour)})
	w = outboxtest.NewWorker(t, db, mux, outboxtest.Config{})
	outcomes := w.Advance(48 * time.Hour)
	want := []string{"1 after 0s", "1 after 10h0m0s", "2 after 15h0m0s", "1 after 30h0m0s", "3 after 47h0m0s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := statuses(outcomes), "retrying retrying succeeded succeeded succeeded"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if in := outcomes[0].DueIn.Round(time.Minute); in != 10*time.Hour {
		t.Errorf("the first attempt is followed after %s", in)
	}
	if status := ask[string](t, db, `SELECT status FROM outbox.history WHERE deadline IS NOT NULL`); status != "expired" {
		t.Errorf("the job with a deadline is %s", status)
	}
	if got := statuses(w.Advance(time.Hour)); got != "succeeded" {
		t.Errorf("in the 49th hour: %s", got)
	}
}

// The database counts whole microseconds: less than one is rounded up, or Advance would have time left for ever.
func TestAdvanceByLessThanTheDatabaseCounts(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{}, outbox.Options{Delay: time.Hour})
	w := outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{})
	advanced := make(chan []outboxtest.Outcome, 1)
	go func() { advanced <- append(w.Advance(time.Nanosecond), w.Advance(time.Hour+time.Nanosecond)...) }()
	select {
	case outcomes := <-advanced:
		if got := statuses(outcomes); got != "succeeded" {
			t.Error(got)
		}
	case <-time.After(time.Minute):
		t.Fatal("Advance does not return")
	}
}

func TestSchedulesFireByTheCalendar(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	var nights, hours []time.Time
	mux := handle(func(_ context.Context, job *outbox.Job[receipt]) error {
		tick, _ := schedule.TickOf(job.Claimed)
		nights = append(nights, tick.At)
		if d := time.Until(job.Deadline); d < 50*time.Minute || d > time.Hour {
			t.Errorf("the deadline is in %s", d)
		}
		return nil
	})
	dispatcher.Handle(mux, func(_ context.Context, job *outbox.Job[stepped]) error {
		tick, _ := schedule.TickOf(job.Claimed)
		hours = append(hours, tick.At)
		return nil
	})
	nightly := schedule.Cron("nightly", "0 3 * * *", "Europe/Berlin", receipt{}, schedule.Options{Deadline: time.Hour})
	hourly := schedule.Every("hourly", time.Hour, stepped{}, schedule.Options{})
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{Schedules: []schedule.Schedule{nightly, hourly}})
	from := w.Now()
	w.Advance(48 * time.Hour)

	var wantNights, wantHours []time.Time
	for at, _ := nightly.Next(from); at.Before(from.Add(48 * time.Hour)); at, _ = nightly.Next(at) {
		wantNights = append(wantNights, at)
	}
	for at, _ := hourly.Next(from); at.Before(from.Add(48 * time.Hour)); at, _ = hourly.Next(at) {
		wantHours = append(wantHours, at)
	}
	if diff := cmp.Diff(wantNights, nights); diff != "" {
		t.Errorf("nights (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantHours, hours); diff != "" || len(hours) != 48 {
		t.Errorf("%d hours (-want +got):\n%s", len(hours), diff)
	}
}

func TestColumnsThatAreNamedAge(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	exec(t, db, `CREATE SCHEMA shop; CREATE TABLE shop.sessions (id int, expires_at timestamptz, made_at timestamptz)`)
	exec(t, db, `INSERT INTO shop.sessions VALUES (1, now() + interval '1 day', now()), (2, now() + interval '3 days', now()), (3, NULL, now())`)
	mux := handle(func(ctx context.Context, _ *outbox.Job[receipt]) error {
		_, err := db.Exec(ctx, `DELETE FROM shop.sessions WHERE expires_at < now()`)
		return err
	})
	enqueue(t, db, receipt{}, outbox.Options{Delay: 47 * time.Hour})
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{Columns: []string{"shop.sessions.expires_at"}})
	if got := statuses(w.Advance(48 * time.Hour)); got != "succeeded" {
		t.Error(got)
	}
	if got := ask[string](t, db, `SELECT string_agg(id::text, ' ' ORDER BY id) FROM shop.sessions WHERE made_at = now()`); got != "2 3" {
		t.Errorf("sessions %s are left", got)
	}
}

func TestAHandlerSeesAJobThatHasBecomeOlder(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	mux := handle(func(_ context.Context, job *outbox.Job[receipt]) error {
		if age := time.Since(job.CreatedAt).Round(time.Minute); age != 48*time.Hour {
			t.Errorf("it is %s old", age)
		}
		if late := time.Since(job.RunAt).Round(time.Minute); late != 0 {
			t.Errorf("it is %s late", late)
		}
		return nil
	})
	enqueue(t, db, receipt{}, outbox.Options{Delay: 48 * time.Hour})
	if got := statuses(outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Advance(48 * time.Hour)); got != "succeeded" {
		t.Error(got)
	}
}

// Tables of the test's own may have the policy of docs/guides/tenants.md, for which "*" is no tenant. A view has its
// condition also for a superuser.
func TestTablesWithAPolicyAreReadForTheTestsTenant(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, {0: 7}} {
		root, err := pgtest.New(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = root.Rollback(context.Background()) })
		exec(t, root, `CREATE TABLE all_invoices (tenant_id uuid, n int, due_at timestamptz)`)
		exec(t, root, `CREATE VIEW invoices AS SELECT * FROM all_invoices WHERE tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid`)
		exec(t, root, `INSERT INTO all_invoices VALUES ($1, 1, now() + interval '1 hour'), (gen_random_uuid(), 1, now() + interval '1 hour')`, tenant)
		exec(t, root, `SELECT set_config('app.tenant_id', $1, true)`, tenant.String())
		db := outboxtest.Within(t, root)
		handler := func(n func(*outbox.Job[receipt]) int) *dispatcher.Mux {
			return handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
				return job.Tx(ctx, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO all_invoices VALUES ($1, $2)`, tenant, n(job))
					return errors.Join(err, job.Complete(ctx, tx))
				})
			})
		}
		effects := outboxtest.Effects{Tables: []string{"invoices"}, Options: outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}}}
		if said := fails(t, func(t testing.TB) {
			mux := handler(func(job *outbox.Job[receipt]) int { return job.Attempt + 1 })
			outboxtest.CrashEverywhere(t, outboxtest.NewWorker(t, db, mux, outboxtest.Config{}), receipt{}, effects)
		}); !strings.Contains(said, "invoices {") || strings.Contains(said, "22P02") {
			t.Errorf("CrashEverywhere said %s", said)
		}
		w := outboxtest.NewWorker(t, db, handler(func(*outbox.Job[receipt]) int { return 2 }), outboxtest.Config{Columns: []string{"invoices.due_at"}})
		outboxtest.CrashEverywhere(t, w, receipt{}, effects)
		w.Advance(time.Hour)
		if n := ask[int](t, db, `SELECT count(*) FROM all_invoices WHERE due_at <= now()`); n != 1 {
			t.Errorf("%d invoices are due, want that of the tenant", n)
		}
	}
}
