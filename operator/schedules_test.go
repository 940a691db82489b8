package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeSchedules stores one of the root tenant and one of another.
func storeSchedules(t *testing.T, db *pgxpool.Pool) (other outbox.ID) {
	t.Helper()
	other = outbox.NewID()
	_, err := db.Exec(t.Context(), `
		INSERT INTO outbox.schedules (name, expression, time_zone, kind, queue, priority, max_attempts, timeout, backoff, key, max_active, on_lapse, deadline, hold, streamed, payload, headers, next_at)
		VALUES ('report', '0 7 * * *', 'Europe/Berlin', 'mail', 'post', 2, 3, '1 minute', '{1 s}', 'k', 3, 'block', '2 hours', true, true, '{"n":1}', '{"user": "ada"}', now() + interval '1 hour')`)
	if err == nil {
		_, err = db.Exec(t.Context(), `
			INSERT INTO outbox.schedules (tenant_id, name, every, missed, missed_limit, kind, payload, next_at, last_at)
			VALUES ($1, 'report', '90 seconds', 'all', 5, 'mail', '{}', '2030-01-01Z', '2029-01-01Z')`, other)
	}
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func TestSchedulesAreListed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	other := storeSchedules(t, db)
	got, err := o.Schedules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []operator.Schedule{
		{Name: "report", Tenant: outbox.RootTenant, Expression: "0 7 * * *", Zone: "Europe/Berlin", Missed: "once", MissedLimit: 1, Kind: "mail", Queue: "post", Streamed: true, Generation: 1},
		{
			Name: "report", Tenant: other, Every: 90 * time.Second, Missed: "all", MissedLimit: 5, Kind: "mail", Queue: "default", Generation: 1,
			LastAt: time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC), NextAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		},
	}
	if len(got) != 2 || got[0].NextAt.Before(time.Now()) || got[0].CreatedAt.IsZero() || got[0].UpdatedAt.IsZero() {
		t.Fatalf("got %+v, want two with their times", got)
	}
	got[0].NextAt = time.Time{}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(operator.Schedule{}, "CreatedAt", "UpdatedAt")); diff != "" {
		t.Errorf("schedules (-want +got):\n%s", diff)
	}
}

func TestASchedulesTenantIsItsOwn(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	other := storeSchedules(t, db)
	pausedAndThere := func() (paused []bool) {
		schedules, err := o.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range schedules {
			paused = append(paused, !s.PausedSince.IsZero())
		}
		return paused
	}
	for range 2 {
		if err := o.PauseSchedule(t.Context(), other, "report"); err != nil {
			t.Fatal(err)
		}
	}
	if got := pausedAndThere(); !cmp.Equal(got, []bool{false, true}) {
		t.Errorf("paused = %v, want the other tenant's", got)
	}
	if err := o.ResumeSchedule(t.Context(), other, "report"); err != nil {
		t.Fatal(err)
	}
	if got := pausedAndThere(); !cmp.Equal(got, []bool{false, false}) {
		t.Errorf("paused = %v, want none", got)
	}
	if err := o.DeleteSchedule(t.Context(), outbox.ID{}, "report"); err != nil {
		t.Fatal(err)
	}
	if got, err := o.Schedules(t.Context()); err != nil || len(got) != 1 || got[0].Tenant != other {
		t.Errorf("left are %v, %v; want the other tenant's", got, err)
	}
}

// Ticks of a pause do not count: a resumed schedule begins now. Resuming one that
// is not paused must not make it forget what it has missed.
func TestResumeCountsFromNow(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeSchedules(t, db)
	age := func() (seconds float64) {
		if err := db.QueryRow(t.Context(), `SELECT extract(epoch FROM now() - since)::float8 FROM outbox.schedules WHERE every IS NULL`).Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	if _, err := db.Exec(t.Context(), `UPDATE outbox.schedules SET since = now() - interval '1 day'`); err != nil {
		t.Fatal(err)
	}
	if err := o.ResumeSchedule(t.Context(), outbox.ID{}, "report"); err != nil || age() < 80_000 {
		t.Errorf("resuming what is not paused: %v; it counts since %.0f s ago, want a day", err, age())
	}
	if err := o.PauseSchedule(t.Context(), outbox.ID{}, "report"); err != nil {
		t.Fatal(err)
	}
	if err := o.ResumeSchedule(t.Context(), outbox.ID{}, "report"); err != nil || age() > 60 {
		t.Errorf("resuming: %v; it counts since %.0f s ago, want now", err, age())
	}
}

func TestRunScheduleEnqueuesItsJob(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeSchedules(t, db)
	if err := o.PauseSchedule(t.Context(), outbox.ID{}, "report"); err != nil {
		t.Fatal(err)
	}
	var id outbox.ID
	var stored outbox.Status
	if !woken(t, db, func() {
		var err error
		if id, stored, err = o.RunSchedule(t.Context(), outbox.ID{}, "report"); err != nil {
			t.Fatal(err)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	got := job(t, o, id)
	if stored != outbox.Created || got.Status != outbox.Created {
		t.Errorf("it was stored as %s, they say, and is %s; want it held, as the schedule says", stored, got.Status)
	}
	if got.Kind != "mail" || got.Queue != "post" || got.Priority != 2 || got.MaxAttempts != 3 || got.Timeout != time.Minute || !slices.Equal(got.Backoff, outbox.Backoff{time.Second}) || got.Key != "k" ||
		string(got.Payload) != `{"n":1}` || got.Tenant != outbox.RootTenant || !got.Streamed {
		t.Errorf("job = %+v, want it as the schedule says", got)
	}
	var rules string
	if err := db.QueryRow(t.Context(), `
		SELECT concat_ws(' ', status, max_active, on_lapse, deadline - (headers ->> 'scheduled_for')::timestamptz) FROM outbox.jobs`).Scan(&rules); err != nil ||
		rules != "created 3 block 02:00:00" {
		t.Errorf("rules = %s, %v; want those of the schedule", rules, err)
	}
	var headers string
	if err := db.QueryRow(t.Context(), `SELECT headers - 'scheduled_for' FROM outbox.jobs WHERE (headers ->> 'scheduled_for')::timestamptz BETWEEN now() - interval '1 minute' AND now()`).Scan(&headers); err != nil ||
		headers != `{"user": "ada", "schedule": "report"}` {
		t.Errorf("headers = %s, %v; want the schedule's and its name", headers, err)
	}
	if again, _, err := o.RunSchedule(t.Context(), outbox.ID{}, "report"); err != nil || again == id {
		t.Errorf("running it again: %s, %v; want another job", again, err)
	}
}

func TestAScheduleThatIsNotThere(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeSchedules(t, db)
	_, _, errRun := o.RunSchedule(t.Context(), outbox.ID{}, "other")
	for act, err := range map[string]error{
		"pause": o.PauseSchedule(t.Context(), outbox.ID{}, "other"), "resume": o.ResumeSchedule(t.Context(), outbox.ID{}, "other"),
		"delete": o.DeleteSchedule(t.Context(), outbox.ID{}, "other"), "run": errRun,
		"of another tenant": o.PauseSchedule(t.Context(), outbox.NewID(), "report"),
	} {
		if !errors.Is(err, operator.ErrScheduleNotFound) {
			t.Errorf("%s: got %v, want ErrScheduleNotFound", act, err)
		}
	}
}

func TestActsOnSchedulesAreRecorded(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	other := storeSchedules(t, db)
	ada := o.As(operator.Actor{Name: "ada", RequestID: "req-1"}).Because("too loud")
	var ran outbox.ID
	for _, act := range []func() error{
		func() error { return ada.PauseSchedule(t.Context(), other, "report") },
		func() error { return ada.PauseSchedule(t.Context(), other, "report") }, // changes nothing
		func() error {
			var err error
			ran, _, err = ada.RunSchedule(t.Context(), other, "report")
			return err
		},
		func() error { return ada.ResumeSchedule(t.Context(), other, "report") },
		func() error { return ada.ResumeSchedule(t.Context(), other, "report") }, // changes nothing
		func() error { return ada.DeleteSchedule(t.Context(), other, "report") },
	} {
		if err := act(); err != nil {
			t.Fatal(err)
		}
	}
	if err := ada.DeleteSchedule(t.Context(), other, "report"); !errors.Is(err, operator.ErrScheduleNotFound) {
		t.Errorf("got %v, want %v", err, operator.ErrScheduleNotFound)
	}
	var got []string
	for _, e := range audit(t, o, operator.AuditFilter{Target: "report", Tenant: other}) {
		got = append(got, e.Act)
		if e.Actor != "ada" || e.RequestID != "req-1" || e.Reason != "too loud" || (e.Act == "schedule.run") != (e.JobID == ran) {
			t.Errorf("entry = %+v", e)
		}
	}
	if diff := cmp.Diff([]string{"schedule.delete", "schedule.resume", "schedule.run", "schedule.pause"}, got); diff != "" {
		t.Errorf("acts (-want +got):\n%s", diff)
	}
}
