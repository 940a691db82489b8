package reaper

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

func TestALapsedLeaseIsTakenAway(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 1, -time.Second)
	storeRunning(t, db, 1, time.Minute)
	before := query[time.Time](t, db, `SELECT min(run_at) FROM outbox.jobs`)

	expirePass(t, r)

	ok := query[bool](t, db, `
		SELECT status = 'retrying' AND epoch = 2 AND attempt = 1 AND lost_leases = 1 AND run_at = $1
		   AND lease_owner IS NULL AND last_error_code = 'lease_lost'
		   AND last_error_message ~ '^the lease of worker worker-1 lapsed at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ: '
		FROM outbox.jobs WHERE status <> 'running'`, before)
	if !ok {
		t.Error("the job is not as it should be: retrying, a higher epoch, one lost lease, at its old place in the queue, with the reason")
	}
	recorded := query[bool](t, db, `
		SELECT count(*) = 1 AND bool_and(epoch = 1 AND attempt = 1 AND worker = 'worker-1' AND error_code = 'lease_lost')
		FROM outbox.attempts`)
	if !recorded {
		t.Error("the attempt was not recorded")
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running' AND epoch = 1`); got != 1 {
		t.Errorf("live leases left = %d, want 1", got)
	}
	if got := value(t, r.metrics.expired); got != 1 {
		t.Errorf("leases expired = %v, want 1", got)
	}
}

// A pass later it might have waited for as long as the passes are apart.
func TestALeaseThatIsAboutToLapseIsWaitedFor(t *testing.T) {
	t.Parallel()
	var deaf bool
	r, db := newRig(t, Config{Listening: func() bool { return !deaf }})
	cheap := true // to look, whatever the last pass cost on this machine
	wait := func() time.Duration {
		t.Helper()
		r.expirer.looksAhead = cheap
		d, err := r.expire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	regular, quiet := expireInterval-expireJitter/2, quietInterval-expireJitter/2
	storeRunning(t, db, 1, time.Minute)
	if d := wait(); d < quiet {
		t.Errorf("with a lease that lasts, the next pass is in %s, want %s or more", d, quiet)
	}
	storeRunning(t, db, 1, 4*time.Second)
	if d := wait(); d < 3*time.Second || d > 4*time.Second+lapseMargin {
		t.Errorf("with a lease that lapses in 4 s, the next pass is in %s", d)
	}
	storeRunning(t, db, 1, 1500*time.Millisecond)
	d := wait()
	if d < time.Second || d > 1500*time.Millisecond+lapseMargin {
		t.Errorf("with a lease that lapses in 1.5 s, the next pass is in %s", d)
	}
	time.Sleep(d)
	wait()
	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`); got != 1 {
		t.Errorf("jobs taken back when their lease lapsed = %d, want 1", got)
	}
	storeRunning(t, db, 1, 50*time.Millisecond)
	retrying := `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`
	if d := wait(); d != lapseSpacing && query[int](t, db, retrying) == 1 { // else it has lapsed before the pass
		t.Errorf("with a lease that lapses at once, the next pass is in %s, want %s", d, lapseSpacing)
	}
	storeRunning(t, db, 1, 2*time.Second)
	exec(t, db, `DELETE FROM outbox.jobs`)
	for _, why := range []string{"looking takes long", "nothing is heard"} {
		cheap, deaf = !cheap, !cheap
		if d := wait(); d < regular || d > regular+expireJitter {
			t.Errorf("where %s, the next pass is in %s, want %s or a little more", why, d, regular)
		}
	}
}

// A statement closes only some of the jobs that are to be closed, and leaves the others to their workers until the next
// one. Of those it records no attempt: the worker of one may come back and store how it ended.
func TestAJobThatIsLeftForTheNextStatementHasNotLostItsLease(t *testing.T) {
	t.Parallel()
	const some = 50
	for name, set := range map[string]string{
		"cancelled":             `cancel_requested_at = now()`,
		"cancelled, with a key": `cancel_requested_at = now(), key = id::text`,
		"stale, with a key":     `on_lapse = 'fail-stale', key = id::text`,
	} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, db := newRig(t, Config{})
				storeRunning(t, db, some+10, -time.Second)
				exec(t, db, `UPDATE outbox.jobs SET tenant_id = $1, `+set, mustUUID(tenant))
				storeRunning(t, db, 3, -time.Second)

				always, never := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
				_, _, _, err := r.expirer.take(t.Context(), sqlgen.ExpireLeasesParams{
					FromLease: always, BeforeLease: never, FromDeadline: never, MaxJobs: 1000,
					Overlap: pgvalue.Interval(0), Horizon: pgvalue.Interval(0), LeaseHorizon: pgvalue.Interval(0),
				})
				if err != nil {
					t.Fatal(err)
				}

				if n := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`); n != 10 {
					t.Fatalf("jobs that are left = %d, want 10", n)
				}
				if n := query[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE job_id IN (SELECT id FROM outbox.jobs WHERE status = 'running')`); n != 0 {
					t.Errorf("attempts of jobs that are left, recorded as lost = %d, want none", n)
				}
				expirePass(t, r)
				if n := query[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE error_code = 'lease_lost'`); n != some+10+3 {
					t.Errorf("recorded attempts = %d, want one of each of %d jobs", n, some+10+3)
				}
			})
		}
	}
}

// The fingerprint is made in SQL here and in Go by the dispatcher.
func TestTheDeadOfALapsedLeaseAreGroupedByKind(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 3, -time.Second)
	exec(t, db, `UPDATE outbox.jobs SET attempt = 25 WHERE id IN (SELECT id FROM outbox.jobs LIMIT 2)`)

	expirePass(t, r)

	want := fingerprint.Of("test", codes.LeaseLost, "")
	got := query[int](t, db, `
		SELECT count(*) FROM outbox.jobs
		WHERE CASE WHEN status = 'dead' THEN error_fingerprint = $1 AND failed_at > now() - interval '1 minute'
			ELSE error_fingerprint IS NULL AND failed_at IS NULL END`, want)
	if got != 3 {
		t.Errorf("jobs as they should be = %d, want 3: dead ones with the fingerprint %s and a time, the other with neither", got, want)
	}
}

func TestWhatBecomesOfAJobWhoseLeaseLapsed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		set         string // on a job with attempt 1 of 25
		status      outbox.Status
		attempt     int
		lost        int
		waitSeconds int // 0: run_at stays
	}{
		"attempts are left: it is retried at once":            {`attempt = 24`, outbox.Retrying, 24, 1, 0},
		"the last attempt: it is dead":                        {`attempt = 25`, outbox.Dead, 25, 1, 0},
		"the second lost lease: it waits a second":            {`lost_leases = 1`, outbox.Retrying, 1, 2, 1},
		"the fourth: it waits longer":                         {`lost_leases = 3`, outbox.Retrying, 1, 4, 7},
		"the twentieth: it waits a minute, no more":           {`lost_leases = 19`, outbox.Retrying, 1, 20, 60},
		"it lost one lease too many":                          {`lost_leases = 59`, outbox.Dead, 1, 60, 60},
		"an outage: the attempt is given back":                {`started_at = now() - interval '1 year'`, outbox.Retrying, 0, 0, 0},
		"an outage in the last attempt: it is not dead":       {`attempt = 25, started_at = now() - interval '1 year'`, outbox.Retrying, 24, 0, 0},
		"an outage after lost leases: it counts as no other":  {`lost_leases = 59, started_at = now() - interval '1 year'`, outbox.Retrying, 0, 59, 0},
		"an outage, and the key is to be blocked: it is dead": {`key = 'k', on_lapse = 'block', started_at = now() - interval '1 year'`, outbox.Dead, 1, 0, 0},
		"an outage, and it is to be closed: it is stale":      {`key = 'k', on_lapse = 'fail-stale', started_at = now() - interval '1 year'`, outbox.Stale, 1, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			storeRunning(t, db, 1, -time.Second)
			exec(t, db, `UPDATE outbox.jobs SET `+tt.set)

			expirePass(t, r)

			var status string
			var attempt, lost, wait int
			err := db.QueryRow(t.Context(), `
				SELECT status::text, attempt, lost_leases, greatest(round(extract(epoch FROM run_at - now())), 0)::integer
				FROM outbox.jobs
				UNION ALL
				SELECT status::text, attempt, lost_leases, 0 FROM outbox.history`).Scan(&status, &attempt, &lost, &wait)
			if err != nil {
				t.Fatal(err)
			}
			if status != string(tt.status) || attempt != tt.attempt || lost != tt.lost {
				t.Errorf("got %s, attempt %d, %d lost leases, want %s, %d, %d", status, attempt, lost, tt.status, tt.attempt, tt.lost)
			}
			if wait < tt.waitSeconds-1 || wait > tt.waitSeconds {
				t.Errorf("due in %d s, want %d", wait, tt.waitSeconds)
			}
			if got := value(t, r.metrics.dead) == 1; got != (tt.status == outbox.Dead) {
				t.Errorf("counted as dead = %t", got)
			}
		})
	}
}

// An attempt whose worker died has not found out whether what it depends on is
// there again: an outage that was being waited out goes on, and with it its limit.
func TestALostLeaseSaysNothingOfAnOutage(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 1, -time.Second)
	exec(t, db, `UPDATE outbox.jobs SET unavailable_since = now() - interval '1 hour'`)
	expirePass(t, r)
	if got := query[string](t, db, `SELECT concat_ws(' ', status, attempt, now() - unavailable_since > interval '59 minutes') FROM outbox.jobs`); got != "retrying 1 t" {
		t.Errorf("the job is %q, want it retrying, the attempt spent, and the outage an hour old", got)
	}
}

func TestDispatchersAreWoken(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { conn.Hijack().Close(context.WithoutCancel(t.Context())) }()
	exec := func(sql string) {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("LISTEN outbox_jobs")

	expirePass(t, r) // nothing to do: it wakes nobody
	exec("SELECT")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := conn.Conn().WaitForNotification(short); err == nil {
		t.Errorf("an idle pass notified %+v", n)
	}
}

func TestAnExpiryNotifiesOnceForManyJobs(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "LISTEN outbox_jobs"); err != nil {
		t.Fatal(err)
	}
	storeRunning(t, db, 100, -time.Second)
	expirePass(t, r)
	n, err := conn.WaitForNotification(t.Context())
	if err != nil || n.Payload != "" {
		t.Fatalf("notification = %+v, %v, want an empty one", n, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := conn.WaitForNotification(short); err == nil {
		t.Errorf("a second notification %+v, want one for the statement", n)
	}
}

// A handler that calls Complete keeps its job's row locked until it commits:
//
//	handler  BEGIN … Complete (row locked)                        COMMIT
//	reaper                        pass: skips it, takes the others
func TestALockedRowIsSkippedAndTheOthersAreNot(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 3, -time.Second)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	var locked outbox.ID
	if err := tx.QueryRow(t.Context(), `SELECT id FROM outbox.jobs LIMIT 1 FOR UPDATE`).Scan(&locked); err != nil {
		t.Fatal(err)
	}
	expirePass(t, r)
	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`); got != 2 {
		t.Errorf("jobs taken beside a locked one = %d, want 2", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	expirePass(t, r)
	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`); got != 3 {
		t.Errorf("jobs taken when nobody locks any = %d, want 3", got)
	}
}

// A lease is extended after the reaper's statement has taken its snapshot and
// before it locks the row; the row that the snapshot shows has lapsed:
//
//	reaper   snapshot: lapsed …           waits on the gate   lock: judged anew, kept
//	worker                      extends, commits
//
// SKIP LOCKED does not wait, so the order is forced with an advisory lock that a
// policy on the table takes: it is evaluated between scan and lock.
func TestALeaseExtendedUnderTheReapersSnapshotIsKept(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 1, -time.Millisecond)
	exec(t, db, `
		CREATE FUNCTION pass_gate() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('application_name') = 'gated' THEN PERFORM pg_advisory_xact_lock_shared(42); END IF;
			RETURN true;
		END $$`)
	config := db.Config()
	conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock(42)`); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `ALTER TABLE outbox.jobs ENABLE ROW LEVEL SECURITY`)
	exec(t, db, `ALTER TABLE outbox.jobs FORCE ROW LEVEL SECURITY`)
	exec(t, db, `CREATE POLICY gate ON outbox.jobs USING (pass_gate())`)
	role := "gated_" + query[string](t, db, `SELECT current_database()`)
	exec(t, db, `CREATE ROLE `+role)
	exec(t, db, `GRANT USAGE ON SCHEMA outbox TO `+role)
	exec(t, db, `GRANT ALL ON ALL TABLES IN SCHEMA outbox TO `+role)
	exec(t, db, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO `+role)
	t.Cleanup(func() {
		_, _ = db.Exec(context.Background(), `DROP OWNED BY `+role)
		_, _ = db.Exec(context.Background(), `DROP ROLE `+role)
	})
	if _, err := r.leases.Exec(t.Context(), `SET ROLE `+role+`; SET application_name = 'gated'`); err != nil {
		t.Fatal(err)
	}

	passed := make(chan error, 1)
	go func() { passed <- r.expirer.pass(context.WithoutCancel(t.Context())) }()
	await(t, "the reaper stands at the gate", func() bool {
		return query[int](t, db, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
	})
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() + interval '15 s'`)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock(42)`); err != nil {
		t.Fatal(err)
	}
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, db, `SELECT status::text || epoch FROM outbox.jobs`); got != "running1" {
		t.Errorf("the job whose lease was extended in time is %s, want running1", got)
	}
}

// A worker that was stopped past its lease and continued settles with an old epoch.
func TestAZombiesOutcomeIsRefused(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 1, -time.Second)
	expirePass(t, r)
	id := query[outbox.ID](t, db, `SELECT id FROM outbox.jobs`)
	job := &outbox.Claimed{ID: id, Epoch: 1}
	if err := job.Complete(t.Context(), db); err == nil {
		t.Error("the zombie's Complete was accepted")
	}
	left, err := sqlgen.New(db).GuardLease(t.Context(), sqlgen.GuardLeaseParams{ID: mustUUID(id), Epoch: 1})
	if err != nil || left != 0 {
		t.Errorf("the zombie still passes the guard: %d, %v", left, err)
	}
}

// A statement that takes too long takes fewer jobs the next time, whosever they are: many leases that lapse in one
// second are in one span, which no narrower one divides.
func TestManyLapsedLeasesAreTakenAFewAtATime(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 100, -time.Minute)
	exec(t, db, `UPDATE outbox.jobs SET tenant_id = $1 WHERE id IN (SELECT id FROM outbox.jobs LIMIT 50)`, outbox.ID{7})
	exec(t, db, `
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
		CREATE TRIGGER slow BEFORE UPDATE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION slow()`)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := r.expirer.pass(short); !isTimeout(err) {
		t.Fatalf("a second of work in less: %v, want a timeout", err)
	}
	if r.expirer.batch != expireBatch/8 {
		t.Errorf("the next statement takes %d jobs, want %d", r.expirer.batch, expireBatch/8)
	}
	r.expirer.scan = scan{}                 // as if there had been no slow pass
	await(t, "all are taken", func() bool { // the server may go on for a moment with the statement that was given up
		expirePass(t, r)
		return query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`) == 0
	})
	if r.expirer.batch < expireBatch/8*2 {
		t.Errorf("after a pass that went well a statement takes %d, want at least %d", r.expirer.batch, expireBatch/8*2)
	}
}
