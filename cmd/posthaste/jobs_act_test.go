package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/outbox"
)

// stored stores n jobs of a kind, and returns their ids.
func stored(t *testing.T, db *pgxpool.Pool, n int, kind string, options outbox.Options) (ids []string) {
	t.Helper()
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i] = outbox.Request{Args: outbox.Raw{KindName: kind, Payload: []byte(`{}`)}, Options: options}
	}
	jobs, err := outbox.EnqueueMany(t.Context(), db, requests)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range jobs {
		ids = append(ids, id.String())
	}
	return ids
}

func TestJobsAreActedOnByFilter(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		// Two parts and a page, so that both go on.
		many := name[:4] + "-many"
		stored(t, db, 205, many, outbox.Options{Queue: "mail", Hold: true})
		stored(t, db, 2, many, outbox.Options{Queue: "other", Hold: true})
		count := func(filter ...string) int {
			return len(listed(t, direct, append([]string{"--limit", "1000", "--kind", many}, filter...)...))
		}
		if out := ok(t, way, "jobs", "release", "--kind", many, "--queue", "mail", "--dry-run"); out != "would release 205\n" || count("--status", "created") != 207 {
			t.Errorf("%s: a dry run said %q and left %d held, want 207", name, out, count("--status", "created"))
		}
		if r := posthaste(t, way, "", "jobs", "release", "--yes", "--kind", many, "--queue", "mail"); r.out != "release: 205 done, 0 passed over\n" || r.errOut != "" || count("--status", "created") != 2 {
			t.Errorf("%s: release said %+v and left %d held, want 2", name, r, count("--status", "created"))
		}
		sqlExec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w', lease_expires_at = now(), started_at = now()
			WHERE id IN (SELECT id FROM outbox.jobs WHERE kind = $1 AND queue = 'mail' ORDER BY id LIMIT 3)`, many)
		r := posthaste(t, way, "", "jobs", "cancel", "--yes", "--kind", many, "--status", "pending,running", "--created-since", "1h")
		if r.code != exitOK || r.out != "cancel: 205 done, 0 passed over\n" || r.errOut != "3 of them are running: their handlers have been asked to stop\n" {
			t.Errorf("%s: cancel: %+v", name, r)
		}
		if got, running := count("--status", "cancelled"), count("--status", "running"); got != 202 || running != 3 {
			t.Errorf("%s: %d are cancelled and %d run, want 202 and 3", name, got, running)
		}
		if r := posthaste(t, way, "", "jobs", "cancel", "--kind", many, "--created-until", "1h"); r.out != "cancel: 0 done, 0 passed over\n" {
			t.Errorf("%s: cancel of what is an hour old: %+v", name, r)
		}

		// Without a status retry means dead letters: what waits is left as it is.
		dead, late := name[:4]+"-dead", time.Now().Add(time.Hour)
		stored(t, db, 3, dead, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
		stored(t, db, 1, dead, outbox.Options{Key: outbox.KeyRules{Name: "other"}})
		bury(t, db, dead)
		stored(t, db, 1, dead, outbox.Options{Key: outbox.KeyRules{Name: "k"}, RunAt: late})
		if out := ok(t, way, "jobs", "retry", "--yes", "--kind", dead, "--key", "k", "--fingerprint", "f1"); out != "retry: 3 done, 0 passed over\n" {
			t.Errorf("%s: retry said %q", name, out)
		}
		if out := ok(t, way, "jobs", "retry", "--kind", dead, "--dry-run"); out != "would retry 1\n" {
			t.Errorf("%s: a second dry run said %q", name, out)
		}
		if out := ok(t, way, "jobs", "list", "--kind", dead, "--fingerprint", "f1"); strings.Count(out, dead) != 1 {
			t.Errorf("%s: the rest of the group is\n%s", name, out)
		}
		if out := ok(t, way, "jobs", "dismiss", "--kind", dead); out != "dismiss: 1 done, 0 passed over\n" {
			t.Errorf("%s: dismiss said %q", name, out)
		}
	}
	for act, want := range map[string]int{"job.release": 410, "job.cancel": 410, "job.replay": 6, "job.dismiss": 2} {
		if got := len(rows(t, direct, "audit", "--act", act, "--limit", "1000")); got != want {
			t.Errorf("the audit has %d of %s, want %d", got, act, want)
		}
	}
}

// A job that somebody holds is not passed over: nobody knows what becomes of it.
func TestAJobOfWhichNothingIsKnownIsAnError(t *testing.T) {
	t.Parallel()
	db, direct, through := waysWithin(t, 3*time.Second)
	ids := stored(t, db, 3, "greet", outbox.Options{})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = ANY ($1::uuid[]) FOR UPDATE`, ids[:2]); err != nil {
		t.Fatal(err)
	}
	r := posthaste(t, through, "", "jobs", "cancel", "--kind", "greet", "--yes")
	if r.code != exitFailed || r.out != "cancel: 1 done, 0 passed over\n" || !strings.Contains(r.errOut, ids[0]+": timeout") || !strings.Contains(r.errOut, ids[1]+": timeout") {
		t.Errorf("%+v, want both jobs that are locked named, and exit status 1", r)
	}
	// The server may run the statement until it hears, a moment later, that it was given up.
	awaitLocks(t, db, false)
	_ = tx.Rollback(t.Context())
	if out := ok(t, direct, "jobs", "cancel", "--kind", "greet", "--yes"); out != "cancel: 2 done, 0 passed over\n" {
		t.Errorf("afterwards: %q", out)
	}
}

func TestJobsOfWhichNothingIsKnownAreNamedButNotAll(t *testing.T) {
	if err := notKnown("retry", nil); err != nil {
		t.Errorf("of none: %v", err)
	}
	jobs := make([]client.Outcome, 100)
	for i := range jobs {
		jobs[i] = client.Outcome{ID: fmt.Sprintf("<%d>", i), Code: "internal_error"}
	}
	text := notKnown("retry", jobs).Error()
	if strings.Count(text, "\n") != 5 || !strings.Contains(text, "retry job <4>: internal_error") || strings.Contains(text, "<5>") || !strings.HasSuffix(text, "95 more") {
		t.Errorf("of 100: %s", text)
	}
	if text := notKnown("retry", jobs[:5]).Error(); strings.Contains(text, "more") {
		t.Errorf("of 5: %s", text)
	}
}

// What cannot be done any more when its turn comes is passed over.
func TestAnActByFilterPassesOverWhatHasMoved(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for _, way := range []env{direct, through} {
		sqlExec(t, db, `DELETE FROM outbox.jobs`)
		stored(t, db, 3, "late", outbox.Options{})
		bury(t, db, "late")
		sqlExec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second' WHERE id = (SELECT min(id::text)::uuid FROM outbox.jobs)`)
		if out := ok(t, way, "jobs", "retry", "--kind", "late", "--dry-run"); out != "would retry 2\n" {
			t.Errorf("a dry run said %q", out)
		}
		late := listed(t, direct, "--kind", "late", "--limit", "3")[2]["id"].(string)
		if r := posthaste(t, way, "", "jobs", "retry", late, "--dry-run"); r.code != exitFailed || r.out != "" || !strings.Contains(r.errOut, "deadline has passed") {
			t.Errorf("a dry run with its id: %+v", r)
		}
		if r := posthaste(t, way, "", "jobs", "retry", "--yes", "--kind", "late", "--reason", "why not"); r.code != exitOK || r.out != "retry: 2 done, 1 passed over\n" {
			t.Errorf("retry of one past its deadline: %+v", r)
		}
		acts := rows(t, direct, "audit", "--act", "job.replay", "--limit", "2")
		if len(acts) != 2 || acts[0]["reason"] != "why not" || acts[1]["reason"] != "why not" {
			t.Errorf("audit = %v, want its reason", acts)
		}
	}
}

// An act on waiting jobs interrupts none that has begun to run.
func TestAnActByFilterKeepsToItsStatuses(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		kind := "k-" + name[:4]
		ids := stored(t, db, 2, kind, outbox.Options{})
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		// The listing does not see this claim.
		if _, err := tx.Exec(t.Context(), claimSQL+` AND id = $2`, kind, ids[1]); err != nil {
			t.Fatal(err)
		}
		done := make(chan ran, 1)
		go func() {
			done <- posthaste(t, way, "", "jobs", "cancel", "--yes", "--kind", kind, "--status", "pending")
		}()
		awaitLocks(t, db, true)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.code != exitOK || r.out != "cancel: 1 done, 1 passed over\n" {
			t.Errorf("%s: %+v, want one cancelled", name, r)
		}
		var asked int
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE cancel_requested_at IS NOT NULL`).Scan(&asked); err != nil || asked != 0 {
			t.Errorf("%s: %d running jobs are asked to stop, %v", name, asked, err)
		}
	}
}

// awaitLocks returns when a session waits for another's lock, or none does.
func awaitLocks(t *testing.T, db *pgxpool.Pool, wanted bool) {
	t.Helper()
	for waiting := !wanted; waiting != wanted; {
		err := db.QueryRow(t.Context(), `
			SELECT count(*) > 0 FROM pg_sleep(0.005), pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// On a job that another transaction has locked nothing was done: it is named, and keeps the act from no other job.
func TestAJobThatIsLockedIsNamedAndLeft(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, direct, through := ways(t)
			sqlExec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = 300', current_database()); END $$`)
			db.Reset() // those that are open keep their own
			for way, e := range map[string]env{"directly": direct, "through the API": through} {
				kind := "k-" + way[:4]
				ids := stored(t, db, 2*actPart, kind, outbox.Options{Tenant: tenant})
				locked := ids[len(ids)-1] // the newest is the first
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
				if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, locked); err != nil {
					t.Fatal(err)
				}
				r := posthaste(t, e, "", "jobs", "cancel", "--kind", kind, "--tenant", tenant.String(), "--yes")
				if want := fmt.Sprintf("cancel: %d done, 1 passed over\n", 2*actPart-1); r.code != exitFailed || r.out != want ||
					!strings.Contains(r.errOut, "cancel job "+locked+": another transaction has locked it: nothing was done") || strings.Contains(r.errOut, "not known") {
					t.Errorf("%s: %+v, want the locked job named, and %q", way, r, want)
				}
			}
		})
	}
}
