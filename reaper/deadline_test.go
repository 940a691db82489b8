package reaper

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeWithDeadline stores n jobs in a status, with a deadline so long from now.
func storeWithDeadline(t testing.TB, db *pgxpool.Pool, n int, status string, in time.Duration) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at, deadline)
		SELECT gen_random_uuid(), 'test', '{}', $2::outbox.job_status, 1, 1, now(),
		       CASE WHEN $2 = 'running' THEN 'worker-1' END, CASE WHEN $2 = 'running' THEN now() + interval '1 hour' END,
		       clock_timestamp() + $3::interval + i * interval '1 us'
		FROM generate_series(1, $1) AS i`, n, status, in)
}

func deadlinePass(t testing.TB, r *Reaper) {
	t.Helper()
	if err := r.deadlineExpirer.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A job expires from whatever open status, in the instant of its deadline and not
// before. A dead letter waits for a person.
func TestEveryOpenJobExpiresAtItsDeadline(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	for _, s := range engine.Statuses[outbox.Status]() {
		if !s.Closed() {
			storeWithDeadline(t, db, 1, string(s), -time.Second)
			storeWithDeadline(t, db, 1, string(s), time.Hour)
		}
	}
	deadlinePass(t, r)
	got := query[string](t, db, `
		SELECT coalesce(string_agg(closed_from::text, ' ' ORDER BY closed_from), 'nowhere') FROM outbox.history
		WHERE status = 'expired' AND epoch = 2 AND attempt = 1 AND deadline < finished_at
		  AND (worker IS NOT DISTINCT FROM 'worker-1') = (closed_from = 'running')`)
	if want := "created pending blocked running retrying"; got != want {
		t.Errorf("expired from %s, want %s", got, want)
	}
	if left := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE deadline > now() OR status IN ('failed', 'dead')`); left != 9 {
		t.Errorf("jobs left = %d, want the seven that have time, and two dead letters", left)
	}
	if n := query[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 9 {
		t.Errorf("open jobs = %d, want 9", n)
	}
	if got := value(t, r.metrics.late); got != 5 {
		t.Errorf("counted %v, want 5", got)
	}
}

// The lease of a job that was cancelled lapses: nobody tries it again.
func TestACancelledJobWhoseLeaseLapsedIsCancelled(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 60, -time.Second) // more than are closed at once
	exec(t, db, `UPDATE outbox.jobs SET cancel_requested_at = now()`)
	storeRunning(t, db, 1, -time.Second)
	expirePass(t, r)
	closed := query[int](t, db, `
		SELECT count(DISTINCT id) FROM outbox.history
		WHERE status = 'cancelled' AND closed_from = 'running' AND epoch = 2 AND last_error_code = 'lease_lost' AND worker = 'worker-1'
		  AND EXISTS (SELECT FROM outbox.attempts WHERE job_id = history.id AND error_code = 'lease_lost')`)
	retried := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`)
	if closed != 60 || retried != 1 {
		t.Errorf("cancelled %d, retrying %d; want 60 and 1", closed, retried)
	}
}

// A running job is left to its worker for a moment: then the reaper is back.
func TestARunningJobIsLeftToItsWorkerForAMoment(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeWithDeadline(t, db, 1, "pending", 0)
	storeWithDeadline(t, db, 1, "running", 0)
	exec(t, db, `UPDATE outbox.jobs SET deadline = clock_timestamp()`)
	before := time.Now()
	deadlinePass(t, r)
	left := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`)
	if took := time.Since(before); left != 1 && took < deadlinePatience {
		t.Errorf("the running job was taken within %s", took)
	}
	if n := query[int](t, db, `SELECT count(*) FROM outbox.history WHERE closed_from = 'pending'`); n != 1 {
		t.Errorf("expired %d that waited, want 1", n)
	}
	if wait := r.deadlineExpirer.next.Sub(before); left == 1 && wait > deadlinePatience+time.Since(before) {
		t.Errorf("the next pass is in %s, want it when the worker's time is over", wait)
	}
	await(t, "it expires, too", func() bool {
		deadlinePass(t, r)
		return query[int](t, db, `SELECT count(*) FROM outbox.history WHERE closed_from = 'running'`) == 1
	})
}

// Somebody has locked the row at its deadline: a handler that has called Complete.
// If it rolls back, the job expires after all.
func TestALockedJobExpiresLater(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeWithDeadline(t, db, 2, "running", -time.Second)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM outbox.jobs LIMIT 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	deadlinePass(t, r)
	if n := query[int](t, db, `SELECT count(*) FROM outbox.history`); n != 1 {
		t.Errorf("expired %d, want the one that is free", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	deadlinePass(t, r)
	if n := query[int](t, db, `SELECT count(*) FROM outbox.history`); n != 2 {
		t.Errorf("expired %d, want both", n)
	}
}

// More than a statement takes, all at once.
func TestManyJobsExpireInOnePass(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeWithDeadline(t, db, 3*deadlineBatch+1, "pending", -time.Hour)
	deadlinePass(t, r)
	if n := query[int](t, db, `SELECT count(DISTINCT id) FROM outbox.history`); n != 3*deadlineBatch+1 {
		t.Errorf("expired %d", n)
	}
}

// counter counts the statements that have a text in them.
type counter struct {
	text string
	n    atomic.Int64
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, c.text) {
		c.n.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// tracedReaper counts the reaper's passes over deadlines, or another statement of its.
func tracedReaper(t *testing.T, db *pgxpool.Pool, config Config, statement string) (*Reaper, *counter) {
	t.Helper()
	passes := &counter{text: statement}
	c := db.Config()
	c.ConnConfig.Tracer = passes
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r, err := New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return r, passes
}

// The reaper sleeps until the next deadline that it knows of. It hears of one by a
// wake-up, or else from a pass over the leases.
func TestDeadlinesAreFoundWithAndWithoutNotifications(t *testing.T) {
	t.Parallel()
	for name, announced := range map[string]bool{"announced": true, "not announced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, db := newRig(t, Config{})
			wake := make(chan struct{}, 1)
			r, passes := tracedReaper(t, db, Config{Wake: wake, Listening: func() bool { return true }}, "ExpireDeadlines")
			run(t, r)
			await(t, "the first pass", func() bool { return passes.n.Load() == 1 })
			storeWithDeadline(t, db, 1, "pending", 700*time.Millisecond)
			if announced {
				wake <- struct{}{}
			}
			await(t, "it expires", func() bool { return query[int](t, db, `SELECT count(*) FROM outbox.history`) == 1 })
			t.Logf("late by %s", query[time.Duration](t, db, `SELECT finished_at - deadline FROM outbox.history`))
		})
	}
}

// Nothing arrives, and the listener says so: a deadline that is so near that no pass
// over the leases comes before it is kept all the same. One is just over, so the next
// is two seconds away.
func TestADeafReaperIsInTime(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	var deaf atomic.Bool
	var asked atomic.Int64
	hearing := func() bool { asked.Add(1); return !deaf.Load() }
	r, passes := tracedReaper(t, db, Config{Listening: hearing}, "ExpireLeases")
	run(t, r)
	await(t, "the first passes over leases and deadlines", func() bool { return passes.n.Load() == 1 && asked.Load() == 2 })
	deaf.Store(true)
	await(t, "the one that finds us deaf", func() bool { return passes.n.Load() == 2 })
	await(t, "the one after it", func() bool { return passes.n.Load() == 3 })
	stalled := pgtest.Stalls(t, db)
	storeWithDeadline(t, db, 1, "pending", 100*time.Millisecond)
	await(t, "it expires", func() bool { return query[int](t, db, `SELECT count(*) FROM outbox.history`) == 1 })
	late, excused := query[time.Duration](t, db, `SELECT finished_at - deadline FROM outbox.history`), stalled()
	t.Logf("late by %s; the machine stood still for %s", late, excused)
	if late > 1500*time.Millisecond+2*excused {
		t.Errorf("it expired %s after its deadline, want 1.5 s at most, and twice the %s that the machine stood still", late, excused)
	}
}

// Where nothing has a deadline nobody looks for them, and a storm of wake-ups
// makes for two looks a second at most.
func TestNobodyLooksForDeadlinesThatNobodyHas(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	wake := make(chan struct{}, 1)
	r, passes := tracedReaper(t, db, Config{Wake: wake, Listening: func() bool { return true }}, "ExpireDeadlines")
	run(t, r)
	await(t, "the first pass", func() bool { return passes.n.Load() == 1 })
	position := func() bool { return r.deadlines.passed.Load() != nil }
	await(t, "it is over", position)
	first := *r.deadlines.passed.Load()
	await(t, "a pass over the leases looks, too", func() bool { return r.deadlines.passed.Load().After(first) })
	if n := passes.n.Load(); n != 1 {
		t.Errorf("passes over no deadlines = %d, want the first one", n)
	}
	begun := time.Now()
	for passes.n.Load() < 4 {
		select {
		case wake <- struct{}{}:
		default:
		}
		time.Sleep(time.Millisecond) // a storm
	}
	if n, most := passes.n.Load()-1, 1+time.Since(begun)/deadlineSpacing; n > int64(most) {
		t.Errorf("%d passes in %s, want at most %d", n, time.Since(begun), most)
	}
}

// Jobs that had a deadline and are done leave dead entries in the index as long as
// somebody holds a snapshot. Neither passes nor the looks ahead read them again
// and again.
func TestAHeldSnapshotDoesNotSlowDeadlinesDown(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	unvacuumed(t, db)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	read := func(do func(testing.TB, *Reaper), affordable bool) int {
		r.deadlineExpirer.scan.fullAfter = map[bool]time.Time{true: {}, false: time.Now().Add(time.Hour)}[affordable]
		return blocks(t, r, db, func() { do(t, r) })
	}
	deadlinePass(t, r)
	expirePass(t, r)
	idle := read(deadlinePass, true)
	storeWithDeadline(t, db, 4_000, "pending", -2*time.Minute) // passed minutes ago …
	storeWithDeadline(t, db, 4_000, "pending", time.Hour)      // … or far ahead …
	exec(t, db, `DELETE FROM outbox.jobs`)                     // … and done
	full, recent, look := read(deadlinePass, true), read(deadlinePass, false), read(expirePass, false)
	t.Logf("a pass over nothing reads %d blocks; over 8000 dead entries: full %d, recent %d, with the leases %d", idle, full, recent, look)
	for what, took := range map[string]int{"a recent pass": recent, "a look ahead": look} {
		if took > max(full/4, 3*idle+20) {
			t.Errorf("%s reads %d blocks, as if it read them all: with no dead entries %d, over all %d", what, took, idle, full)
		}
	}
	rests := func() bool {
		r.deadlineExpirer.scan.fullAfter = time.Time{}
		began := time.Now()
		deadlinePass(t, r)
		return time.Until(r.deadlineExpirer.scan.fullAfter) > 4*time.Since(began)
	}
	for n := 0; !rests(); n++ {
		if n == 10 {
			t.Fatal("full passes follow soon after one another, want about nine times their length between them")
		}
	}
}

// A wake-up comes while a look at everything is not affordable: what only such a
// look finds is found as soon as it is, and not at the next poll a minute later.
func TestWhatANearPassLeavesIsLookedForSoon(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	deadlinePass(t, r)
	storeWithDeadline(t, db, 1, "pending", -time.Hour)
	r.deadlineExpirer.scan.fullAfter = time.Now().Add(2 * time.Second) // the first pass took long
	deadlinePass(t, r)
	if n := query[int](t, db, `SELECT count(*) FROM outbox.history`); n != 0 {
		t.Fatal("the pass was no recent one: the test proves nothing")
	}
	if wait := time.Until(r.deadlineExpirer.next); wait > 2*time.Second {
		t.Errorf("the next pass is in %s, want it when it is affordable", wait)
	}
	r.deadlineExpirer.scan.fullAfter = time.Time{}
	deadlinePass(t, r)
	if n := query[int](t, db, `SELECT count(*) FROM outbox.history`); n != 1 {
		t.Errorf("expired %d, want 1", n)
	}
}

// A statement that takes too long closes fewer jobs the next time.
func TestJobsWithLargePayloadsExpireAFewAtATime(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeWithDeadline(t, db, 100, "pending", -time.Hour)
	exec(t, db, `
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
		CREATE TRIGGER slow BEFORE INSERT ON outbox.history FOR EACH ROW EXECUTE FUNCTION slow()`)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := r.deadlineExpirer.pass(short); !isTimeout(err) {
		t.Fatalf("a second of work in less: %v, want a timeout", err)
	}
	if r.deadlineExpirer.batch != deadlineBatch/8 {
		t.Errorf("the next statement takes %d jobs, want %d", r.deadlineExpirer.batch, deadlineBatch/8)
	}
	r.deadlineExpirer.scan = scan{} // as if there had been no slow pass
	deadlinePass(t, r)
	if r.deadlineExpirer.batch != deadlineBatch/8*2 {
		t.Errorf("after one that went well it takes %d, want %d", r.deadlineExpirer.batch, deadlineBatch/8*2)
	}
	await(t, "all expire", func() bool { // the server may go on for a moment with the statement that was given up
		deadlinePass(t, r)
		return query[int](t, db, `SELECT count(*) FROM outbox.history`) == 100
	})
}

// What a look saw moves the position only if it saw nothing.
func TestThePositionMovesPastEmptyTimeOnly(t *testing.T) {
	t.Parallel()
	d := newDeadlines()
	at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	if d.lookFrom() != always {
		t.Error("a first look does not see everything")
	}
	d.noteLook(at, 2.5)
	if d.passed.Load() != nil || len(d.sooner) != 1 {
		t.Error("a deadline was seen, and the position moved or nobody was told")
	}
	d.noteLook(at, math.Inf(1))
	d.noteLook(at.Add(-time.Hour), math.Inf(1)) // an older look, or a clock that was set back
	if got := d.lookFrom().Time; !got.Equal(at.Add(-overlap)) {
		t.Errorf("the next look begins at %s, want %s", got, at.Add(-overlap))
	}
	for _, cheap := range []bool{true, false} {
		d.cheap.Store(cheap)
		farBack := 0
		for range 4 * wholeLook {
			if d.lookFrom() == always {
				farBack++
			}
		}
		if want := map[bool]int{true: 4}[cheap]; farBack != want {
			t.Errorf("looks far back, cheap %t: %d, want %d", cheap, farBack, want)
		}
	}
}
