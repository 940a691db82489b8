package schedule

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAJobOfAScheduleIsAsItWasDeclared(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant := outbox.NewID()
	s := newScheduler(t, db, Every("hourly", time.Hour, reportArgs{Of: "sales"}, Options{
		Queue: "mail", Priority: 3, MaxAttempts: 7, Timeout: time.Minute, Backoff: outbox.Backoff{0, time.Hour}, Key: outbox.KeyRules{Name: "k"}, Headers: map[string]string{"user": "ada"}, Tenant: tenant,
	}))
	declare(t, s)
	if n := fire(t, s); n != 0 {
		t.Fatalf("fired %d schedules before their time", n)
	}
	age(t, db, "hourly", time.Hour)
	if n := fire(t, s); n != 1 {
		t.Fatalf("fired %d schedules, want 1", n)
	}
	got := ask[string](t, db, `
		SELECT concat_ws('|', tenant_id, queue, kind, priority, max_attempts, timeout, backoff, key, convert_from(payload, 'UTF8'), content_type,
		       headers - 'scheduled_for', run_at BETWEEN now() - interval '1 minute' AND now())
		FROM outbox.jobs`)
	want := tenant.String() + `|mail|report|3|7|00:01:00|{00:00:00,01:00:00}|k|{"of":"sales"}|application/json|{"user": "ada", "schedule": "hourly"}|t`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	next := ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules`)
	if last := ask[time.Time](t, db, `SELECT last_at FROM outbox.schedules`); next.Sub(last) != time.Hour || next.Before(time.Now()) || next.Truncate(time.Hour) != next {
		t.Errorf("next tick %s, last tick %s; want the next full hour and the one before", next, last)
	}
}

// The rules of a key, a deadline that counts from the tick, and held.
func TestAJobOfAScheduleHasTheRulesOfItsKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db,
		Every("limited", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", MaxActive: 3, OnLapse: outbox.FailStale}, Hold: true}),
		Every("ordered", time.Hour, reportArgs{}, Options{
			Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: 90 * time.Minute}, Missed: All, Deadline: 400 * 24 * time.Hour,
		}),
		Every("plain", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	for _, name := range []string{"limited", "ordered", "plain"} {
		age(t, db, name, 2*time.Hour)
	}
	fire(t, s)
	got := askAll[string](t, db, `
		SELECT concat_ws(' ', headers ->> 'schedule', status, key, max_active, ordered, on_death, park_after, on_lapse, deadline - (headers ->> 'scheduled_for')::timestamptz)
		FROM outbox.jobs ORDER BY headers ->> 'schedule', line_position`)
	want := []string{"limited created k 3 fail-stale", "ordered pending k t park 01:30:00 400 days", "ordered pending k t park 01:30:00 400 days", "plain pending"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	ticks := askAll[string](t, db, `SELECT headers ->> 'scheduled_for' FROM outbox.jobs WHERE ordered ORDER BY line_position`)
	if !slices.IsSorted(ticks) {
		t.Errorf("the line is %v, want the ticks in their order", ticks)
	}
}

// Streamed by the schedule's options or by the kind's, of the root tenant and another one, keyed and plain.
func TestJobsOfAScheduleAreStreamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	another := outbox.ID{15: 7}
	s := newScheduler(t, db,
		Every("by-kind", time.Hour, streamedArgs{}, Options{}),
		Every("keyed", time.Hour, reportArgs{}, Options{Streamed: true, Tenant: another, Key: outbox.KeyRules{Name: "k"}}),
		Every("plain", time.Hour, reportArgs{}, Options{Streamed: true}),
		Every("silent", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	exec(t, db, `UPDATE outbox.schedules SET since = since - interval '2 h', next_at = next_at - interval '2 h'`)
	fire(t, s)
	got := askAll[string](t, db, `SELECT concat_ws(' ', headers ->> 'schedule', streamed) FROM outbox.jobs ORDER BY headers ->> 'schedule'`)
	if diff := cmp.Diff([]string{"by-kind 1", "keyed 1", "plain 1", "silent"}, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	if n := ask[int](t, db, `SELECT count(*)::int FROM outbox.events WHERE topic = 'job.created'`); n != 3 {
		t.Errorf("%d jobs have an event, want 3", n)
	}
}

type streamedArgs struct{}

func (streamedArgs) Kind() string                   { return "streamed" }
func (streamedArgs) DefaultOptions() outbox.Options { return outbox.Options{Streamed: true} }

// One that was missed for longer than its jobs are good for enqueues one that
// expires at once: the history shows it.
func TestADeadlineCountsFromTheTick(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("hourly", time.Hour, reportArgs{}, Options{Deadline: time.Millisecond}))
	declare(t, s)
	age(t, db, "hourly", time.Hour)
	fire(t, s)
	if late := ask[bool](t, db, `SELECT deadline = (headers ->> 'scheduled_for')::timestamptz + interval '1 ms' AND deadline < now() FROM outbox.jobs`); !late {
		t.Error("the deadline is not a millisecond after the tick")
	}
}

func TestWhatBecomesOfMissedTicks(t *testing.T) {
	t.Parallel()
	noon := "2026-06-01T12:00:00Z"
	tests := map[string]struct {
		missed Missed
		limit  int32
		nextAt string // "" is noon
		since  string // "" is the beginning
		now    string
		want   []string
	}{
		"on time, skip":                        {Skip, 1, "", "", "2026-06-01T12:00:00.01Z", []string{noon}},
		"a little late, skip":                  {Skip, 1, "", "", "2026-06-01T12:00:59Z", []string{noon}},
		"a minute late, skip":                  {Skip, 1, "", "", "2026-06-01T12:01:00Z", nil},
		"hours late, skip the last is on time": {Skip, 1, "", "", "2026-06-01T15:00:05Z", []string{"2026-06-01T15:00:00Z"}},
		"on time, once":                        {Once, 1, "", "", noon, []string{noon}},
		"hours late, once is the latest":       {Once, 1, "", "", "2026-06-01T15:59:00Z", []string{"2026-06-01T15:00:00Z"}},
		"on time, all":                         {All, 3, "", "", noon, []string{noon}},
		"hours late, all in order":             {All, 3, "", "", "2026-06-01T14:30:00Z", []string{noon, "2026-06-01T13:00:00Z", "2026-06-01T14:00:00Z"}},
		"days late, all up to the limit":       {All, 2, "", "", "2026-06-03T00:30:00Z", []string{"2026-06-02T23:00:00Z", "2026-06-03T00:00:00Z"}},
		"none before it was resumed":           {All, 10, "", "2026-06-01T13:30:00Z", "2026-06-01T14:30:00Z", []string{"2026-06-01T14:00:00Z"}},
		"none since it was resumed":            {Once, 10, "", "2026-06-01T13:30:00Z", "2026-06-01T13:30:00Z", nil},
		"of other rules, ours had it before":   {Skip, 1, "2026-06-01T12:10:00Z", "", "2026-06-01T12:10:01Z", []string{"2026-06-01T12:10:00Z"}},
		"of other rules, ours have it next":    {Once, 1, "2026-06-01T12:50:00Z", "", "2026-06-01T12:50:01Z", nil},
		"of other rules, resumed since":        {Once, 1, "2026-06-01T12:10:00Z", "2026-06-01T12:10:01Z", "2026-06-01T12:10:02Z", nil},
	}
	for name, tt := range tests {
		r := row{
			Every: pgvalue.IntervalOrNull(time.Hour), Missed: string(tt.missed), MissedLimit: tt.limit,
			NextAt: timestamp(instant(t, noon)), Since: timestamp(instant(t, "2026-01-01T00:00:00Z")),
		}
		if tt.since != "" {
			r.Since = timestamp(instant(t, tt.since))
		}
		if tt.nextAt != "" {
			r.NextAt = timestamp(instant(t, tt.nextAt))
		}
		now := instant(t, tt.now)
		f, err := plan(r, now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, at := range f.ticks {
			got = append(got, at.Format(time.RFC3339Nano))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if want := now.Truncate(time.Hour).Add(time.Hour); !f.next.Equal(want) {
			t.Errorf("%s: next tick is %s, want %s", name, f.next, want)
		}
	}
}

func TestMissedTicksAreEnqueuedInTheirOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("hourly", time.Hour, reportArgs{}, Options{Missed: All, MissedLimit: 50}))
	declare(t, s)
	age(t, db, "hourly", 100*time.Hour)
	fire(t, s)
	got := firedFor(t, db, "hourly")
	if len(got) != 50 || !slices.IsSorted(got) {
		t.Fatalf("got %d jobs %v, want the latest 50 in order", len(got), got)
	}
	if last := ask[time.Time](t, db, `SELECT date_trunc('hour', now())`); got[49] != last.UTC().Format(time.RFC3339) {
		t.Errorf("the last job is for %s, want %s", got[49], last)
	}
}

// Large arguments are not enqueued a thousand times in one transaction: it would
// not fit into its time, and be tried again for ever.
func TestManyLargeJobsAreFiredInParts(t *testing.T) {
	t.Parallel()
	noon := instant(t, "2026-06-01T12:00:00Z")
	r := row{
		Every: pgvalue.IntervalOrNull(time.Hour), Missed: string(All), MissedLimit: 1000, Payload: make([]byte, maxFiringBytes/3),
		NextAt: timestamp(noon), Since: timestamp(noon),
	}
	now := noon.Add(7*time.Hour + time.Minute)
	var all []time.Time
	for rounds := 1; ; rounds++ {
		f, err := plan(r, now)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f.ticks...)
		if r.NextAt = timestamp(f.next); f.next.After(now) {
			if rounds != 3 || len(all) != 8 || !slices.IsSortedFunc(all, time.Time.Compare) || !f.next.Equal(noon.Add(8*time.Hour)) {
				t.Errorf("%d rounds fired %s, next is %s; want 8 ticks in 3 rounds", rounds, all, f.next)
			}
			return
		}
	}
}

// A database that takes long to store jobs gets fewer of them at once, until they finish in time.
func TestWhatTakesTooLongIsFiredInParts(t *testing.T) {
	t.Parallel()
	for name, due := range map[string]string{
		"schedules": `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, key, missed, next_at, since)
			SELECT CASE WHEN i % 2 = 0 THEN $1::uuid ELSE $2::uuid END, 's' || i, '1 hour', 'k', '1', CASE WHEN i % 3 = 0 THEN 'k' END, 'once',
				now() - interval '1 hour', now() - interval '1 hour' FROM generate_series(1, 90) AS i`,
		"missed ticks": `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, key, missed, missed_limit, next_at, since)
			SELECT tenant, 's', '1 hour', 'k', '1', key, 'all', 45, now() - interval '45 hours', now() - interval '45 hours'
			FROM (VALUES ($1::uuid, 'k'), ($2::uuid, NULL)) AS of_tenants (tenant, key)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := newScheduler(t, db)
			exec(t, db, due, outbox.RootTenant, outbox.NewID())
			exec(t, db, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.08); RETURN NEW; END $$`)
			exec(t, db, `CREATE TRIGGER slow BEFORE INSERT ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION slow()`)
			left := func() int {
				return ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE next_at <= now()`)
			}
			failed := 0
			for range 20 {
				if left() == 0 {
					break
				}
				if _, err := s.firer.fire(t.Context()); err != nil {
					failed++
				}
			}
			n := ask[int](t, db, `SELECT count(DISTINCT (tenant_id, headers ->> 'schedule', headers ->> 'scheduled_for')) FROM outbox.jobs`)
			if left() != 0 || failed == 0 || n != 90 || ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) != 90 {
				t.Errorf("%d schedules are left and %d jobs stored after %d failures, want none and 90 after some", left(), n, failed)
			}
			for range 12 { // which has nothing to do, and so is quick
				fire(t, s)
			}
			if want := (limits{maxFirings, maxFiringTicks}); s.firer.limits != want {
				t.Errorf("the limits are %+v in the end, want %+v again", s.firer.limits, want)
			}
		})
	}
}

// The process that holds the row fires; nobody waits for it, and a process that
// comes after finds the next tick.
func TestATickIsFiredByOneProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one, other := newScheduler(t, db, Every("hourly", time.Hour, reportArgs{}, Options{})), newScheduler(t, db)
	declare(t, one)
	age(t, db, "hourly", time.Hour)
	var fired int
	err := transact(t.Context(), one.pool, func(tx pgx.Tx) error {
		rows, err := sqlgen.New(tx).LockDueSchedules(t.Context(), sqlgen.LockDueSchedulesParams{SetAside: []string{}, Passed: []string{}, MaxSchedules: 10})
		if err != nil || len(rows) != 1 {
			t.Fatalf("locked %d schedules, %v; want 1", len(rows), err)
		}
		if fired = fire(t, other); fired != 0 {
			t.Error("a schedule that another transaction is firing was fired")
		}
		f, err := plan(rows[0], rows[0].Now.Time)
		if err != nil {
			return err
		}
		return store(t.Context(), tx, []firing{f})
	})
	if err != nil {
		t.Fatal(err)
	}
	if fire(t, other) != 0 || len(firedFor(t, db, "hourly")) != 1 {
		t.Errorf("jobs = %v, want one", firedFor(t, db, "hourly"))
	}
}

// A process that is killed in the middle of a firing has not fired.
func TestAFiringThatIsCutOffHappensElsewhere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one, other := newScheduler(t, db, Every("hourly", time.Hour, reportArgs{}, Options{})), newScheduler(t, db)
	declare(t, one)
	age(t, db, "hourly", time.Hour)
	err := transact(t.Context(), one.pool, func(tx pgx.Tx) error {
		rows, err := sqlgen.New(tx).LockDueSchedules(t.Context(), sqlgen.LockDueSchedulesParams{SetAside: []string{}, Passed: []string{}, MaxSchedules: 10})
		if err != nil {
			return err
		}
		f, err := plan(rows[0], rows[0].Now.Time)
		if err != nil {
			return err
		}
		if err := store(t.Context(), tx, []firing{f}); err != nil {
			return err
		}
		exec(t, db, `SELECT pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
		return nil
	})
	if err == nil {
		t.Fatal("the transaction was committed: the test proves nothing")
	}
	await(t, "the locks go", func() bool { return fire(t, other) == 1 })
	if got := firedFor(t, db, "hourly"); len(got) != 1 {
		t.Errorf("jobs = %v, want one", got)
	}
}

// The server's clock was set back, or somebody set the row back: the tick has had
// its job.
func TestATickIsNotFiredAgainAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("daily", 24*time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	age(t, db, "daily", 24*time.Hour)
	fire(t, s)
	age(t, db, "daily", 24*time.Hour)
	if n := fire(t, s); n != 1 {
		t.Fatalf("fired %d schedules, want the one that is due again", n)
	}
	if got := firedFor(t, db, "daily"); len(got) != 1 {
		t.Errorf("jobs = %v, want one", got)
	}
}

// The server's clock was two days ahead, when a schedule fired and another was declared: with the statement of the
// guide they continue from now on, and the time of the statement is no tick.
func TestSchedulesContinueAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guides/schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, _ := strings.Cut(string(guide), "```sql\nUPDATE ")
	statement, _, _ = strings.Cut("UPDATE "+statement, "```")
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("fired", time.Hour, reportArgs{}, Options{}), Every("declared", time.Hour, reportArgs{}, Options{}),
		Every("right", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at + interval '2 days', last_at = next_at - interval '1 hour' + interval '2 days' WHERE name = 'fired'`)
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at + interval '2 days', since = since + interval '2 days' WHERE name = 'declared'`)
	right := ask[string](t, db, `SELECT schedules::text FROM outbox.schedules WHERE name = 'right'`)
	exec(t, db, statement)
	if n := fire(t, s); n != 2 {
		t.Errorf("fired %d schedules, want the two that are moved back", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 0 {
		t.Errorf("%d jobs, want none before the next tick", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE next_at = date_bin('1 hour', now(), 'epoch') + interval '1 hour'`); n != 3 {
		t.Errorf("%d schedules fire in the next hour, want all", n)
	}
	if after := ask[string](t, db, `SELECT schedules::text FROM outbox.schedules WHERE name = 'right'`); after != right {
		t.Errorf("a schedule that was right has changed from %s to %s", right, after)
	}
}

func TestAProcessThatFallsSilentLosesItsLocks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db)
	_ = transact(t.Context(), s.pool, func(tx pgx.Tx) error {
		if got := ask[string](t, tx, `SHOW idle_in_transaction_session_timeout`); got != "5s" {
			t.Errorf("idle_in_transaction_session_timeout = %s, want 5s", got)
		}
		return nil
	})
}

// refuseBad has the database refuse jobs of the kind bad.
func refuseBad(t *testing.T, db outbox.DB) {
	t.Helper()
	exec(t, db, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no bad jobs'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.kind = 'bad') EXECUTE FUNCTION refuse()`)
}

func TestOneScheduleThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db,
		Every("a-refused", time.Hour, outbox.Raw{KindName: "bad", Payload: []byte("1")}, Options{}),
		Every("b", time.Hour, reportArgs{}, Options{}),
		Every("c-unknown-zone", time.Hour, reportArgs{}, Options{}),
		Every("d", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	exec(t, db, `UPDATE outbox.schedules SET every = NULL, expression = '0 0 * * *', time_zone = 'Atlantis/Capital' WHERE name = 'c-unknown-zone'`)
	refuseBad(t, db)
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at - interval '1 hour', since = since - interval '1 hour'`)
	if n := fire(t, s); n != 2 {
		t.Errorf("fired %d schedules, want 2", n)
	}
	if got := askAll[string](t, db, `SELECT headers ->> 'schedule' FROM outbox.jobs ORDER BY 1`); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("jobs of %v, want of b and d", got)
	}
	// They stay due, and for some time nobody looks at them.
	if due := askAll[string](t, db, `SELECT name FROM outbox.schedules WHERE next_at <= now() ORDER BY 1`); !slices.Equal(due, []string{"a-refused", "c-unknown-zone"}) {
		t.Errorf("due = %v", due)
	}
	if wait, err := s.round(t.Context()); err != nil || wait < 10*time.Second {
		t.Errorf("sleeps %s, %v; want until something else is due", wait, err)
	}
	if n := value(t, s.metrics.refused); n != 2 {
		t.Errorf("refused = %v, want 2", n)
	}
	// When that time is over and the mistake mended, it fires.
	exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	clear(s.firer.refused)
	if n := fire(t, s); n != 1 {
		t.Errorf("fired %d schedules, want the mended one", n)
	}
}

// A producer's transaction has the idempotency keys of the four ticks that are due longest, and stays open: the other
// schedules, a tenant's too, fire meanwhile, and those soon after the transaction has ended.
func TestSchedulesWhoseKeysAreLockedHoldUpNoOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant := outbox.NewID()
	locked := []string{"a1", "a2", "a3", "a4"}
	schedules := []Schedule{
		Every("b", time.Hour, reportArgs{}, Options{Tenant: tenant}),
		Every("c", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k"}}),
	}
	for _, name := range locked {
		schedules = append(schedules, Every(name, time.Hour, reportArgs{}, Options{}))
	}
	s := newScheduler(t, db, schedules...)
	declare(t, s)
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at - interval '1 hour' * CASE WHEN name LIKE 'a%' THEN 2 ELSE 1 END, since = since - interval '2 hours'`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, name := range locked {
		at := ask[time.Time](t, db, `SELECT next_at + interval '1 hour' FROM outbox.schedules WHERE name = $1`, name)
		if _, err := outbox.Enqueue(t.Context(), tx, reportArgs{}, outbox.Options{IdempotencyKey: "schedule " + name + " " + at.UTC().Format(time.RFC3339)}); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	if n := fire(t, s); n != 2 {
		t.Errorf("fired %d schedules, want those that nobody has locked", n)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("it took %s", took)
	}
	if wait, err := s.round(t.Context()); err != nil || wait > asideLocked {
		t.Errorf("sleeps %s, %v; want until the locked ones are tried again", wait, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	clear(s.firer.refused)
	if n := fire(t, s); n != 4 || len(firedFor(t, db, "a1")) != 1 {
		t.Errorf("fired %d schedules, and %v for one that was locked", n, firedFor(t, db, "a1"))
	}
}

func TestTickOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 6, 1, 12, 0, 0, 500_000_000, time.UTC)
	f := firing{row: row{Name: "n", Kind: "k", Headers: []byte(`{"user": "ada"}`)}, ticks: []time.Time{at.In(time.FixedZone("", 3600))}}
	headers := f.requests()[0].Options.Headers
	raw := []byte(`{"schedule": "` + headers["schedule"] + `", "scheduled_for": "` + headers["scheduled_for"] + `"}`)
	if got, ok := TickOf(&outbox.Claimed{RawHeaders: raw}); !ok || got != (Tick{Schedule: "n", At: at}) {
		t.Errorf("got %v, %t; want the tick", got, ok)
	}
	if headers["user"] != "ada" {
		t.Errorf("headers = %v, want those of the schedule too", headers)
	}
	for _, none := range []string{``, `{}`, `{"schedule": "n"}`, `{"scheduled_for": "2026-06-01T12:00:00Z"}`, `{"schedule": "n", "scheduled_for": "noon"}`} {
		if got, ok := TickOf(&outbox.Claimed{RawHeaders: []byte(none)}); ok {
			t.Errorf("headers %s: got %v, want none", none, got)
		}
	}
}

// What can be stored can be fired: headers leave room for those of a tick.
func TestHeadersLeaveRoomForThoseOfATick(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	name := strings.Repeat("n", 128)
	of := func(n int) Schedule { // n bytes as JSON
		return Every(name, time.Hour, reportArgs{}, Options{Headers: map[string]string{"a": strings.Repeat("<", (n-8)/6) + strings.Repeat("x", (n-8)%6)}})
	}
	if err := of(maxHeadersBytes + 1).Validate(); err == nil || !strings.Contains(err.Error(), "are 64513 bytes as JSON, want at most 64512") {
		t.Errorf("one byte more is %v, want a refusal", err)
	}
	s := newScheduler(t, db, of(maxHeadersBytes-1)) // SQL writes a space after the colon
	declare(t, s)
	exec(t, db, `SELECT outbox.create_schedule('sql', 'report', every => '1 hour', headers => headers) FROM outbox.schedules`)
	for _, name := range []string{name, "sql"} {
		age(t, db, name, time.Hour)
	}
	if n := fire(t, s); n != 2 {
		t.Errorf("fired %d, want both", n)
	}
}

// However many schedules of a tenant are due, another's are fired after a page of them.
func TestSchedulesOfOneTenantHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db)
	many, other := outbox.NewID(), outbox.NewID()
	exec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at, since)
		SELECT $1, 's' || i, '1 hour', 'k', '1', now() - interval '5 hours', now() - interval '5 hours' FROM generate_series(1, 1000) AS i`, many)
	exec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at, since)
		VALUES ($1, 's', '1 hour', 'k', '1', now() - interval '1 hour', now() - interval '1 hour')`, other)
	left := func(tenant outbox.ID) int {
		return ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE tenant_id = $1 AND next_at <= now()`, tenant)
	}
	fire(t, s)
	if of, others := left(many), left(other); of != 900 || others != 0 {
		t.Errorf("after a page %d of the one tenant and %d of the other are left, want 900 and 0", of, others)
	}
	for range 10 {
		fire(t, s)
	}
	if n := left(many); n != 0 || ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) != 1001 {
		t.Errorf("%d are left, want each fired once", n)
	}
}

// The query for the next due schedule reads the front of its index.
func TestASurveyReadsAnIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		INSERT INTO outbox.schedules (name, every, kind, payload, next_at)
		SELECT 's' || i, '1 hour', 'k', '1', now() + i * interval '1 second' FROM generate_series(1, 20000) AS i;
		ANALYZE outbox.schedules`)
	none, one := []string{}, []string{outbox.RootTenant.String()}
	for range 2 {
		for sql, args := range map[string][][]any{sqlgen.SurveySchedules: {{none}}, sqlgen.LockDueSchedules: {{none, none, 100}, {none, one, 100}}} {
			for _, args := range args {
				if plan := strings.Join(askAll[string](t, db, "EXPLAIN "+sql, args...), "\n"); !strings.Contains(plan, "schedules_next_at_idx") {
					t.Errorf("the plan does not use the index:\n%s", plan)
				}
			}
		}
		exec(t, db, `UPDATE outbox.schedules SET next_at = next_at - interval '1 hour'`) // most are due
		exec(t, db, `ANALYZE outbox.schedules`)
	}
}
