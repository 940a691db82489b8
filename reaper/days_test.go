package reaper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestPartitionsAreMadeAhead(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{HistoryAhead: 30})
	if _, err := r.days.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if query[bool](t, db, `SELECT to_regclass(to_char(now() AT TIME ZONE 'UTC' + interval '30 days', '"outbox.history_"YYYYMMDD')) IS NULL`) {
		t.Error("there is no partition for 30 days from now")
	}
}

func TestDaysBeyondEveryRetentionAreDropped(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{Keep: 14 * day})
	storeClosed(t, db, 3, outbox.Succeeded, 15*day)
	storeClosed(t, db, 2, outbox.Succeeded, 14*day-time.Hour)
	future := query[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`) - 2
	trimPass(t, r)
	if got := countHistory(t, db, outbox.Succeeded); got != 2 {
		t.Errorf("closed jobs left = %d, want the 2 within their retention", got)
	}
	if got := query[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`); got != future+1 {
		t.Errorf("days left = %d, want %d", got, future+1)
	}
	if got := value(t, r.metrics.dropped); got != 1 {
		t.Errorf("days dropped = %v, want 1", got)
	}
	if !noted(t, db) {
		t.Error("that it was trimmed is not noted")
	}
}

// noted reports whether a pass of trimming was noted as done.
func noted(t *testing.T, db *pgxpool.Pool) bool {
	t.Helper()
	return query[bool](t, db, `SELECT EXISTS (SELECT FROM outbox.chores WHERE chore = 'trim' AND done_at > now() - interval '1 minute')`)
}

// A partition of yesterday that is dropped would be made again an hour later.
func TestYesterdayIsNeverDropped(t *testing.T) {
	t.Parallel()
	none := map[outbox.Status]time.Duration{}
	for _, status := range closedStatuses() {
		none[status] = 0
	}
	r, db := newRig(t, Config{KeepByStatus: none})
	before := query[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`)
	trimPass(t, r)
	if after := query[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`); after != before {
		t.Errorf("days left = %d, want %d", after, before)
	}
}

// A long report holds a lock on the day that is to be dropped, and settlements go on:
//
//	report   BEGIN, SELECT … history (all days)                                   COMMIT
//	reaper                           LOCK day: waits 100 ms, gives way                    looks, drops
//	settle                                INSERT into today: not in the queue behind it
func TestADropGivesWayToAReport(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	name := ensureDay(t, db, 20*day)
	storeClosed(t, db, 1, outbox.Succeeded, 20*day)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM outbox.history`); err != nil {
		t.Fatal(err)
	}

	ended := make(chan struct{})
	settled := make(chan time.Duration, 1)
	go func() {
		var slowest time.Duration
		for {
			started := time.Now()
			_, err := db.Exec(context.WithoutCancel(t.Context()), `
				INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt,
					max_attempts, lost_leases, priority, queue, kind, payload, content_type)
				VALUES (outbox.uuid_v7(), outbox.uuid_v7(), now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'default', 'test', '', 'text/plain')`)
			if err != nil {
				t.Errorf("settle beside a drop: %v", err)
			}
			slowest = max(slowest, time.Since(started))
			select {
			case <-ended:
				settled <- slowest
				return
			default:
			}
		}
	}()
	started := time.Now()
	if became, err := r.days.drop(t.Context(), name, false); err != nil || became != kept {
		t.Errorf("under a report the day became %d, %v; want it kept", became, err)
	}
	wait := trimPass(t, r)
	took := time.Since(started)
	close(ended)
	t.Logf("the pass took %s, the slowest settlement %s", took, <-settled)
	if took > 20*time.Second { // the reader stays for good
		t.Errorf("the pass took %s, want about the 100 ms of the lock timeout, beside other tests", took)
	}
	if wait > 10*time.Minute {
		t.Errorf("the next try is in %s, want minutes", wait)
	}
	if got := value(t, r.metrics.dropped); got != 0 {
		t.Errorf("days dropped under a report = %v, want 0", got)
	}
	if noted(t, db) {
		t.Error("it is noted as trimmed, with a day that could not be dropped")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	trimPass(t, r)
	if got := value(t, r.metrics.dropped); got != 1 {
		t.Errorf("days dropped after the report = %v, want 1", got)
	}
}

// A transaction that stores a job in a day keeps it from being dropped, and once it has ended, the job and its key are
// in the day:
//
//	handler  BEGIN, completes a job                            COMMIT
//	reaper                           looks, reads the day: one job    looks again, reads the day: two jobs, drops it
func TestADayThatWasKeptIsReadAgain(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeClosed(t, db, 1, outbox.Succeeded, 20*day)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `
		WITH late AS (
			INSERT INTO outbox.history (id, tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt,
				max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			SELECT outbox.uuid_v7(), tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt,
				max_attempts, lost_leases, priority, queue, kind, payload, content_type
			FROM outbox.history
			RETURNING id, tenant_id
		)
		INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id) SELECT tenant_id, 'test', 'late', id FROM late`); err != nil {
		t.Fatal(err)
	}
	// The reaper needs these after it has read the day.
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.idempotency_keys`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.trimmer.trim(t.Context())
		ended <- err
	}()
	for len(ended) == 0 && !query[bool](t, db, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox.idempotency_keys'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`) {
		time.Sleep(10 * time.Millisecond)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	exec(t, db, `DELETE FROM outbox.chores`)
	trimPass(t, r)
	dropped, jobs, keys := value(t, r.metrics.dropped), value(t, r.metrics.jobsTrimmed["succeeded"]), query[int](t, db, `SELECT count(*) FROM outbox.idempotency_keys`)
	if dropped != 1 || jobs != 2 || keys != 0 {
		t.Errorf("%v days are dropped, with %v jobs, and %d idempotency keys stay; want 1, 2 and 0", dropped, jobs, keys)
	}
}

// A backup uses every day for hours. A day in which nothing has to stay is read once meanwhile, and not every minute;
// and once more when the backup is over.
func TestADayIsNotReadAgainUnderABackup(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	name := ensureDay(t, db, 20*day)
	storeClosed(t, db, 100, outbox.Succeeded, 20*day)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE `+name+` IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	trimPass(t, r)
	storeClosed(t, db, 1, outbox.Cancelled, 20*day) // which stays, as a reader of the day finds
	if wait := trimPass(t, r); wait > 10*time.Minute {
		t.Errorf("the next try is in %s, want minutes", wait)
	}
	if got := countHistory(t, db, outbox.Succeeded); got != 100 {
		t.Errorf("the day was read again: %d jobs left, want 100", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	trimPass(t, r)
	if got, dropped := query[int](t, db, `SELECT count(*) FROM outbox.history`), value(t, r.metrics.dropped); got != 1 || dropped != 0 {
		t.Errorf("%d jobs left, and %v days dropped; want the one that stays, and none", got, dropped)
	}
}

// A transaction that has published an event, or completed a job, keeps the parent of the days locked until it commits:
//
//	producer   BEGIN, publish …                                                       COMMIT
//	reaper                      days 1 and 2: rows removed; parent: waits 100 ms each         drops both
//	reaper                                                          day 1 alone: waits 100 ms
//
// The rows are gone at once, and other producers wait once in a pass for days that are empty.
func TestADayIsEmptiedBesideATransactionThatUsesItsParent(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeClosed(t, db, 3, outbox.Succeeded, 20*day)
	storeClosed(t, db, 2, outbox.Succeeded, 21*day)
	for ago := range 3 {
		storeEvents(t, db, 3, time.Duration(20+ago)*day)
	}
	exec(t, db, `INSERT INTO outbox.sinks (sink, top, holes) VALUES ('s', 12, '{[11,12)}')`) // a hole in none of them
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE ONLY outbox.history, ONLY outbox.events IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	trimPass(t, r)
	if got := countHistory(t, db, outbox.Succeeded); got != 0 {
		t.Errorf("jobs left beside the transaction = %d, want 0", got)
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.events`); got != 0 {
		t.Errorf("events left beside the transaction = %d, want 0", got)
	}
	if got := value(t, r.metrics.dropped); got != 0 {
		t.Errorf("days dropped beside the transaction = %v, want 0", got)
	}
	if got := value(t, r.metrics.jobsTrimmed["succeeded"]); got != 5 {
		t.Errorf("jobs that count as trimmed = %v, want 5", got)
	}
	exec(t, db, `DELETE FROM outbox.chores`)
	started := time.Now()
	trimPass(t, r)
	t.Logf("the pass over the empty days took %s", time.Since(started))
	if got := value(t, r.metrics.eventDaysHeld); got != 0 {
		t.Errorf("empty days that are held for a sink with a hole = %v, want 0", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `DELETE FROM outbox.chores`)
	trimPass(t, r)
	if got := value(t, r.metrics.dropped); got != 5 {
		t.Errorf("days dropped after the transaction = %v, want 5", got)
	}
	if got := value(t, r.metrics.jobsTrimmed["succeeded"]); got != 5 {
		t.Errorf("jobs that count as trimmed = %v, want 5", got)
	}
}

// The bounds of a day are read from the catalog as text, in the session's date style and
// time zone: with CST read as US Central Time a day of Shanghai seems 14 hours older than it
// is, and with a zone whose name Postgres does not know nothing can be read at all.
func TestDaysAreReadWhateverTheDateStyle(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][2]string{
		"CST of Shanghai": {"SQL, MDY", "Asia/Shanghai"},
		"WIB of Jakarta":  {"German", "Asia/Jakarta"},
		"IST of Calcutta": {"Postgres, DMY", "Asia/Calcutta"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			for setting, value := range map[string]string{"DateStyle": settings[0], "TimeZone": settings[1]} {
				exec(t, db, fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = %%L', current_database(), '%s'); END $$`, setting, value))
			}
			r := newReaper(t, db, Config{Keep: 14 * day, KeepByStatus: map[outbox.Status]time.Duration{outbox.Cancelled: 30 * day}})
			first := 20*day + 10*time.Hour // of that day one job stays early, and one goes late
			storeClosed(t, db, 1, outbox.Cancelled, first)
			storeClosed(t, db, 2, outbox.Succeeded, first)
			storeClosed(t, db, 3, outbox.Succeeded, 45*day)
			trimPass(t, r)
			if got := countHistory(t, db, outbox.Cancelled); got != 1 {
				t.Errorf("cancelled jobs left = %d, want the one that has 10 more days", got)
			}
			if got := countHistory(t, db, outbox.Succeeded); got != 0 {
				t.Errorf("succeeded jobs left = %d, want none", got)
			}
			if got := value(t, r.metrics.dropped); got != 1 {
				t.Errorf("days dropped = %v, want the one of 45 days ago", got)
			}
		})
	}
}
