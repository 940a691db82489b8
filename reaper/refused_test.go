package reaper

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// refuse creates a trigger that refuses every act on the jobs of a kind. A trigger may report any SQLSTATE: its own
// table may be missing (42P01), or the system may have a fault (XX000).
func refuse(t *testing.T, db *pgxpool.Pool, act, kind, code string) {
	t.Helper()
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = '`+code+`'; END $$`)
	exec(t, db, `CREATE TRIGGER refuse BEFORE `+act+` ON outbox.jobs FOR EACH ROW WHEN (OLD.kind = '`+kind+`') EXECUTE FUNCTION refuse()`)
}

// outcomes lists what has become of the jobs of a kind.
func outcomes(t *testing.T, db *pgxpool.Pool, kind string) string {
	t.Helper()
	return query[string](t, db, `
		SELECT string_agg(DISTINCT status || ' ' || n, ', ') FROM (
			SELECT status::text, count(*) AS n
			FROM (SELECT kind, status FROM outbox.jobs UNION ALL SELECT kind, status FROM outbox.history) AS job
			WHERE kind = $1 GROUP BY status) AS counted`, kind)
}

// The rules of keys mean nothing to a job without one. outbox.enqueue refuses them, but a producer may store jobs with
// INSERT.
func TestAPlainJobWithALapsePolicyIsRetried(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		for _, policy := range []string{"block", "fail-stale"} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				r, db := newRig(t, Config{})
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE outbox_producer; SET LOCAL app.tenant_id = '`+tenant.String()+`';
					INSERT INTO outbox.jobs (id, tenant_id, kind, payload, on_lapse) VALUES (gen_random_uuid(), '`+tenant.String()+`', 'plain', '{}', '`+policy+`')`); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				exec(t, db, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'worker-1', lease_expires_at = now() - interval '1 s'`)
				storeLast(t, db, "beside it", "now()", "now() - interval '1 s'")
				expirePass(t, r)
				wantLast(t, db, "beside it", killed)
				if got := outcomes(t, db, "plain"); got != "retrying 1" {
					t.Errorf("the plain job: %s, want retrying 1", got)
				}
			})
		}
	}
}

// The database refuses to change some jobs whose leases have lapsed, of root and of another tenant, with a key and
// without: the others are taken from their workers, and the pass has gone well.
func TestALapsedJobThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ act, set, others, code string }{
		"retried":                 {"UPDATE", `max_attempts = 2`, "retrying 504", "23514"},
		"dead":                    {"UPDATE", `max_attempts = 1`, "dead 504", "23514"},
		"dead, its table is gone": {"UPDATE", `max_attempts = 1`, "dead 504", "42P01"},
		"dead, and not allowed":   {"UPDATE", `max_attempts = 1`, "dead 504", "42501"},
		"dead, a fault":           {"UPDATE", `max_attempts = 1`, "dead 504", "XX000"},
		"cancelled":               {"DELETE", `cancel_requested_at = now()`, "cancelled 504", "23514"},
		"refused what it does":    {"UPDATE OR DELETE", `on_lapse = CASE WHEN key IS NOT NULL THEN 'fail-stale' END, max_attempts = 2`, "retrying 502, stale 2", "23514"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			const lapsed = `now() - interval '1 s' + random() * interval '100 ms'`
			storeLast(t, db, "refused", "now()", lapsed)
			storeLast(t, db, "test", "now()", lapsed)
			storeRunning(t, db, expireBatch, -time.Second)
			exec(t, db, `UPDATE outbox.jobs SET `+c.set)
			refuse(t, db, c.act, "refused", c.code)

			r.expirer.outages.seen = query[time.Time](t, db, `SELECT now() - $1::interval`, 2*minOutage)
			expirePass(t, r)
			if !r.expirer.outages.end.IsZero() {
				t.Error("a trigger counts as an outage of the database")
			}
			if got := outcomes(t, db, "test"); got != c.others {
				t.Errorf("the others: %s, want %s", got, c.others)
			}
			if got := outcomes(t, db, "refused"); got != "running 4" {
				t.Errorf("those that are refused: %s, want running 4", got)
			}

			exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
			expirePass(t, r)
			if got := outcomes(t, db, "refused"); got != "running 4" {
				t.Errorf("at once: %s, want them left alone for a while", got)
			}
			for id := range r.expirer.skipped {
				r.expirer.skipped[id] = time.Now() // the while is over
			}
			r.expirer.scan = scan{} // which looks at them all, however long the passes before took
			expirePass(t, r)
			if got := outcomes(t, db, "refused"); got == "running 4" {
				t.Error("they are left alone for ever")
			}
		})
	}
}

// The same of jobs whose deadlines have come.
func TestALateJobThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"23514", "42P01", "XX000"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			storeLast(t, db, "refused", "now()", "now() + interval '1 hour'")
			storeLast(t, db, "others", "now()", "now() + interval '1 hour'")
			storeWithDeadline(t, db, deadlineBatch, "pending", -time.Second)
			exec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 s' + random() * interval '100 ms'`)
			refuse(t, db, "DELETE", "refused", code)

			deadlinePass(t, r)
			for kind, want := range map[string]string{"others": "expired 4", "test": "expired 500", "refused": "running 4"} {
				if got := outcomes(t, db, kind); got != want {
					t.Errorf("%s: %s, want %s", kind, got, want)
				}
			}

			exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
			deadlinePass(t, r)
			if got := outcomes(t, db, "refused"); got != "running 4" {
				t.Errorf("at once: %s, want them left alone for a while", got)
			}
			for id := range r.deadlineExpirer.skipped {
				r.deadlineExpirer.skipped[id] = time.Now() // the while is over
			}
			deadlinePass(t, r)
			if got := outcomes(t, db, "refused"); got != "expired 4" {
				t.Errorf("later: %s, want expired 4", got)
			}
		})
	}
}

// A table of ours is missing for a while. That is no job's fault, so none is left alone, and it counts as an outage, in
// which no worker could store an outcome: it costs no job an attempt.
func TestAMissingTableIsNoJobsFault(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	expirePass(t, r)
	storeLast(t, db, "test", "now()", "now() + interval '100 ms'")
	exec(t, db, `UPDATE outbox.jobs SET max_attempts = 1`)
	exec(t, db, `ALTER TABLE outbox.attempts RENAME TO away`)
	for began := time.Now(); time.Since(began) < minOutage+time.Second; time.Sleep(minOutage / 4) {
		if err := r.expirer.pass(t.Context()); err == nil {
			t.Fatal("a pass succeeds without the table of the attempts")
		}
	}
	if n := len(r.expirer.skipped); n > 0 {
		t.Errorf("%d jobs are left alone", n)
	}
	exec(t, db, `ALTER TABLE outbox.away RENAME TO attempts`)
	r.expirer.scan = scan{}
	expirePass(t, r)
	if got := outcomes(t, db, "test"); got != "retrying 4" {
		t.Errorf("they are %s, want retrying 4", got)
	}
}

// storeStuck stores a key with a job that is to be promoted: the head of its line, or one in no line. Each has a queue
// of its own, which says in which order the keys are looked at.
func storeStuck(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, queue, kind string, ordered bool) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, tenant_id, queue, key, kind, payload, status, ordered, line_position)
		VALUES (gen_random_uuid(), $1, $2, 'k', $3, '{}', 'blocked', nullif($4::boolean, false), CASE WHEN $4 THEN 2 END)`, tenant, queue, kind, ordered)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, $2, 'k')`, tenant, queue)
}

// The database refuses to move some keys on, of root and of another tenant: the others are, by one sweep.
func TestAKeyThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, parkAfter := range map[string]string{
		"a row":                             "",
		"a row, with the error 42P01":       "",
		"a head that parks it far too late": "300000 years",
		"a head that parked it long ago":    "-300000 years",
		// It compares as 30 days, and there is no time so long before now.
		"a head whose signs differ": "-71000000 months 2130000030 days",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
				for n := range 3 {
					kind := "others"
					if n == 1 {
						kind = "bad"
					}
					storeStuck(t, db, tenant, "plain "+string(rune('a'+n)), kind, false)
					storeStuck(t, db, tenant, "line "+string(rune('a'+n)), kind, true)
				}
			}
			if parkAfter != "" {
				exec(t, db, `
					INSERT INTO outbox.jobs (id, tenant_id, queue, key, kind, payload, status, ordered, line_position, on_death, park_after, failed_at)
					SELECT gen_random_uuid(), tenant_id, queue, key, 'head', '{}', 'dead', true, 1, 'park', $1, now() FROM outbox.jobs WHERE kind = 'bad' AND ordered`, parkAfter)
				exec(t, db, `DELETE FROM outbox.jobs WHERE kind = 'bad' AND ordered IS NULL`)
			} else {
				code := "23514"
				if strings.Contains(name, "42P01") {
					code = "42P01"
				}
				refuse(t, db, "UPDATE", "bad", code)
			}
			exec(t, db, `
				WITH stored AS (
					INSERT INTO outbox.jobs (id, queue, key, kind, payload, status)
					SELECT gen_random_uuid(), 'plain d', i, 'others', '{}', 'blocked' FROM generate_series(1, $1) AS i RETURNING tenant_id, queue, key)
				INSERT INTO outbox.keys (tenant_id, queue, key) SELECT * FROM stored`, sweepPage)

			sweep(t, r)
			if got := outcomes(t, db, "others"); got != "pending 508" {
				t.Errorf("the others: %s, want pending 508", got)
			}
			switch {
			case parkAfter == "":
				wantRefusedKeys(t, r, db)
			case parkAfter[0] == '-':
				if n := query[int](t, db, `SELECT count(*) FROM outbox.keys WHERE parked_at IS NOT NULL`); n != 2 {
					t.Errorf("%d keys are parked, want both", n)
				}
			default:
				if n := query[int](t, db, `SELECT count(*) FROM outbox.keys WHERE parked_at IS NULL AND park_at BETWEEN now() + interval '36524 days' AND now() + interval '36525 days'`); n != 2 {
					t.Errorf("%d keys are to be parked in a hundred years, want both", n)
				}
			}
		})
	}
}

// wantRefusedKeys checks that keys that are refused are left alone for a while, and not for ever.
func wantRefusedKeys(t *testing.T, r *Reaper, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	sweep(t, r)
	if got := outcomes(t, db, "bad"); got != "blocked 4" {
		t.Errorf("at once: %s, want them left alone for a while", got)
	}
	clear(r.sweeper.promoter.skipped) // the while is over
	sweep(t, r)
	if got := outcomes(t, db, "bad"); got != "pending 4" {
		t.Errorf("later: %s, want pending 4", got)
	}
}

// A key that is refused holds up no other where jobs expire, either: those behind them are promoted at once.
func TestAnExpiryMovesOnWhatIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  string
		pass func(testing.TB, *Reaper)
	}{
		"leases":    {`lease_expires_at = now() - interval '1 s'`, expirePass},
		"deadlines": {`deadline = now() - interval '1 s'`, deadlinePass},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
				for queue, kind := range map[string]string{"a": "others", "b": "bad", "c": "others"} {
					storeStuck(t, db, tenant, queue, kind, false)
				}
			}
			exec(t, db, `
				INSERT INTO outbox.jobs (id, tenant_id, queue, key, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at)
				SELECT gen_random_uuid(), tenant_id, queue, key, 'first', '{}', 'running', 1, 1, now(), 'worker-1', now() + interval '1 hour' FROM outbox.jobs`)
			exec(t, db, `UPDATE outbox.jobs SET `+c.set+` WHERE kind = 'first'`)
			refuse(t, db, "UPDATE", "bad", "XX000")
			c.pass(t, r)
			for kind, want := range map[string]string{"others": "pending 4", "bad": "blocked 2"} {
				if got := outcomes(t, db, kind); got != want {
					t.Errorf("%s: %s, want %s", kind, got, want)
				}
			}
		})
	}
}
