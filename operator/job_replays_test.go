package operator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// succeed stores n jobs of the tenant in the history, which succeeded a minute after each other, up to now; jobs whose
// number is even have the key k. The ninth was cancelled.
func succeed(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, n int) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority,
			queue, kind, payload, content_type, key, headers, timeout)
		SELECT gen_random_uuid(), $1, now(), now(), now() - (`+fmt.Sprint(n)+` - i) * interval '1 minute', 1, (CASE i WHEN 8 THEN 'cancelled' ELSE 'succeeded' END)::outbox.job_status, 'running', 1, 7, 0, 3,
			'out', 'order.announce', convert_to(i::text, 'UTF8'), 'text/plain', CASE WHEN i % 2 = 0 THEN 'k' END, '{"a": "b"}', interval '9 s'
		FROM generate_series(0, $2 - 1) AS i`, tenant, n)
}

// copies returns the open jobs, in the order in which they are due, and of a key in its order.
func copies(t *testing.T, db *pgxpool.Pool) (all []string) {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT format('%s %s %s %s %s %s %s %s', convert_from(payload, 'UTF8'), queue, kind, coalesce(key, '-'), coalesce(on_death, '-'), priority, max_attempts, headers->>'a')
		FROM outbox.jobs
		ORDER BY run_at, key NULLS FIRST, line_position, id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

func TestJobsOfTheHistoryAreEnqueuedAgain(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		t.Run(tenant.String(), func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			succeed(t, db, tenant, 10)
			succeed(t, db, outbox.NewID(), 3)
			exec(t, db, `UPDATE outbox.history SET kind = 'other' WHERE convert_from(payload, 'UTF8') = '9'`)
			r := operator.JobReplay{Kind: "order.announce", Tenant: tenant, Since: time.Now().Add(-6*time.Minute - 30*time.Second), PerSecond: 1}
			plan, err := o.WouldReplayHistory(t.Context(), r)
			if err != nil || plan.Jobs != 4 || plan.Bytes != 4 || plan.Takes != 4*time.Second || plan.Newest.Sub(plan.Oldest) != 3*time.Minute {
				t.Fatalf("the plan is %+v, %v", plan, err)
			}
			if left := copies(t, db); len(left) > 0 {
				t.Fatalf("a plan has made %v", left)
			}
			id, done, err := o.As(operator.Actor{Name: "ada"}).Because("lost").ReplayHistory(t.Context(), r)
			if err != nil || done.Jobs != 4 {
				t.Fatal(done, err)
			}
			want := []string{
				"4 out order.announce k skip 3 7 b", "5 out order.announce - - 3 7 b", "6 out order.announce k skip 3 7 b", "7 out order.announce - - 3 7 b",
			}
			if diff := cmp.Diff(want, copies(t, db)); diff != "" {
				t.Errorf("the copies (-want +got):\n%s", diff)
			}
			exec(t, db, `DO $$ BEGIN
				ASSERT (SELECT count(*) FROM outbox.jobs JOIN outbox.history ON history.payload = jobs.payload AND history.tenant_id = jobs.tenant_id
					WHERE jobs.headers->>'posthaste-original-id' = history.id::text AND jobs.headers->>'posthaste-replay' = '`+id.String()+`'
					  AND jobs.timeout = interval '9 s' AND jobs.attempt = 0 AND jobs.status = 'pending') = 4, 'headers';
				ASSERT (SELECT max(run_at) - min(run_at) FROM outbox.jobs) = interval '3 s', 'rate';
				ASSERT (SELECT count(*) FROM outbox.jobs WHERE tenant_id = '`+tenant.String()+`') = 4, 'tenant';
			END $$`)
			acts, err := o.Audit(t.Context(), operator.AuditFilter{Act: "history.replay"})
			if err != nil || len(acts) != 1 || acts[0].Actor != "ada" || acts[0].Reason != "lost" || acts[0].Target != "order.announce" {
				t.Errorf("the audit has %+v, %v", acts, err)
			}

			// What was enqueued again is not enqueued once more.
			exec(t, db, `WITH gone AS (DELETE FROM outbox.jobs RETURNING *)
				INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, headers, key)
				SELECT id, tenant_id, run_at, created_at, 1, 'succeeded', 'running', 1, max_attempts, 0, priority, queue, kind, payload, content_type, headers, key FROM gone`)
			r.Again, r.Key, r.PerSecond = true, "k", 0
			if _, done, err = o.ReplayHistory(t.Context(), r); err != nil || done.Jobs != 2 {
				t.Errorf("the second time: %+v, %v; want the 2 of the key", done, err)
			}
			exec(t, db, `DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM outbox.jobs WHERE headers ? 'posthaste-original-id'), 'again'; END $$`)
		})
	}
}

func TestAReplayOfJobsThatIsNoneOrTooMuch(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	hour := time.Now().Add(-time.Hour)
	if _, _, err := o.ReplayHistory(t.Context(), operator.JobReplay{Kind: "order.announce", Since: hour}); !errors.Is(err, operator.ErrNoJobsToReplay) {
		t.Errorf("of none: %v", err)
	}
	for field, r := range map[string]operator.JobReplay{
		"JobReplay.Kind":      {Since: hour},
		"JobReplay.Kind ":     {Kind: "relay:orders", Since: hour},
		"JobReplay.Until":     {Kind: "k", Since: hour, Until: hour.Add(-time.Second)},
		"JobReplay.PerSecond": {Kind: "k", Since: hour, PerSecond: 1e6},
		"JobReplay.Key":       {Kind: "k", Since: hour, Key: "a\x00"},
	} {
		_, _, err := o.ReplayHistory(t.Context(), r)
		if invalid, ok := errors.AsType[*outbox.InvalidError](err); !ok || invalid.Field != strings.TrimSpace(field) {
			t.Errorf("%+v: %v, want an InvalidError of %s", r, err, field)
		}
	}
	succeed(t, db, outbox.RootTenant, 5)
	exec(t, db, `UPDATE outbox.history SET payload = convert_to(repeat('x', 4 << 20), 'UTF8')`)
	exec(t, db, `INSERT INTO outbox.history SELECT (jsonb_populate_record(h, jsonb_build_object('id', gen_random_uuid()))).* FROM outbox.history AS h, generate_series(1, 3)`)
	if _, _, err := o.ReplayHistory(t.Context(), operator.JobReplay{Kind: "order.announce", Since: hour}); !errors.Is(err, operator.ErrTooManyToReplay) {
		t.Errorf("of 20 jobs of 4 MiB: %v", err)
	}
	exec(t, db, `UPDATE outbox.history SET payload = '', content_type = $1 WHERE finished_at = (SELECT min(finished_at) FROM outbox.history)`, protect.SealedType)
	if _, err := o.WouldReplayHistory(t.Context(), operator.JobReplay{Kind: "order.announce", Since: hour}); err == nil || !strings.Contains(err.Error(), "JobReplay.Kind has 4 jobs") {
		t.Errorf("of jobs of which some are sealed: %v", err)
	}
	if left := copies(t, db); len(left) > 0 {
		t.Errorf("it has made %d", len(left))
	}
}
