package reaper

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// refuse creates a trigger that refuses every act on the jobs of a kind.
func refuse(t *testing.T, db *pgxpool.Pool, act, kind string) {
	t.Helper()
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$`)
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
	for name, c := range map[string]struct{ act, set, others string }{
		"retried":              {"UPDATE", `max_attempts = 2`, "retrying 504"},
		"dead":                 {"UPDATE", `max_attempts = 1`, "dead 504"},
		"cancelled":            {"DELETE", `cancel_requested_at = now()`, "cancelled 504"},
		"refused what it does": {"UPDATE OR DELETE", `on_lapse = CASE WHEN key IS NOT NULL THEN 'fail-stale' END, max_attempts = 2`, "retrying 502, stale 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{})
			const lapsed = `now() - interval '1 s' + random() * interval '100 ms'`
			storeLast(t, db, "refused", "now()", lapsed)
			storeLast(t, db, "test", "now()", lapsed)
			storeRunning(t, db, expireBatch, -time.Second)
			exec(t, db, `UPDATE outbox.jobs SET `+c.set)
			refuse(t, db, c.act, "refused")

			expirePass(t, r)
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
			for id := range r.expirer.aside {
				r.expirer.aside[id] = time.Now() // the while is over
			}
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
	r, db := newRig(t, Config{})
	storeLast(t, db, "refused", "now()", "now() + interval '1 hour'")
	storeLast(t, db, "others", "now()", "now() + interval '1 hour'")
	storeWithDeadline(t, db, deadlineBatch, "pending", -time.Second)
	exec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 s' + random() * interval '100 ms'`)
	refuse(t, db, "DELETE", "refused")

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
	for id := range r.closer.aside {
		r.closer.aside[id] = time.Now() // the while is over
	}
	deadlinePass(t, r)
	if got := outcomes(t, db, "refused"); got != "expired 4" {
		t.Errorf("later: %s, want expired 4", got)
	}
}
