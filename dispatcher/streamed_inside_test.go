package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
	"github.com/posthaste-dev/posthaste/outbox"
)

// streamedTenants lists the tenants whose streamed jobs are tested.
var streamedTenants = map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": {15: 7}}

// storeTiny enqueues n jobs of a tenant.
func storeTiny(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, n int, streamed bool) {
	t.Helper()
	for range n {
		if _, err := outbox.Enqueue(t.Context(), db, tiny{}, outbox.Options{Streamed: streamed, Tenant: tenant}); err != nil {
			t.Fatal(err)
		}
	}
}

// A claim after one that has leased streamed jobs, and a settlement of such jobs, store the events themselves; the
// statements for other jobs have nothing to do with events.
func TestStreamedJobsHaveStatementsOfTheirOwn(t *testing.T) {
	t.Parallel()
	for name, tenant := range streamedTenants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			d := atRest(t, db, t.Output())
			asked := &asked{DBTX: control(t, db)}
			d.settler.statements.db = sqlgen.New(asked)
			claims := d.queues[engine.DefaultQueue].reserved.claims
			cursor := &scheduler.Cursor{Flow: scheduler.Flow{Tenant: tenant}}
			work := func(jobs int, result func(i int) []byte) {
				t.Helper()
				share := scheduler.Share{Tenant: &scheduler.Tenant{ID: tenant}, Cursors: []*scheduler.Cursor{cursor}, Quota: jobs}
				b := claims.claim(t.Context(), asked, claimRequest{shares: []scheduler.Share{share}, front: true, kinds: []string{"tiny"}, room: jobs})
				if b.err != nil || len(b.claimed) != jobs {
					t.Fatalf("claimed %d jobs, %v; want %d", len(b.claimed), b.err, jobs)
				}
				for i, a := range b.claimed {
					a.outcome, a.job.Result = outcome.Outcome{Status: outbox.Succeeded}, result(i)
				}
				d.settler.settle(b.claimed)
			}
			none := func(int) []byte { return nil }
			storeTiny(t, db, tenant, 10, true)
			work(1, none) // not known to be streamed before
			large := make([]byte, engine.MaxStreamedResult+1)
			work(9, func(i int) []byte { return [][]byte{nil, fmt.Appendf(nil, `{"n": %d}`, i), {0xff, 0}, large}[i%4] })
			storeTiny(t, db, tenant, 2, false)
			work(1, none)
			work(1, none)
			if want := []string{
				"ClaimJobs", "SettleStreamed",
				"ClaimStreamedJobs", "SettleStreamed", "SettleSucceeded", // large results among them
				"ClaimStreamedJobs", "SettleInPlace",
				"ClaimJobs", "SettleInPlace",
			}; !slices.Equal(asked.names, want) {
				t.Errorf("asked %v, want %v", asked.names, want)
			}
			found, err := rebuilt.Compare(t.Context(), db, nil)
			if err != nil || len(found.Differences) > 0 || found.Jobs != 10 || found.Events != 30 {
				t.Errorf("%d jobs and %d events, %v, %v; want 10 and 30", found.Jobs, found.Events, err, found.Differences)
			}
		})
	}
}

// A statement that stores the events of its changes does so only for itself, even if the next is in the same
// transaction:
//
//	claim               its events are stored by itself
//	settle streamed     its event is stored by itself
//	settle              its events are stored by the trigger
func TestTheNextChangeOfATransactionHasItsEvent(t *testing.T) {
	t.Parallel()
	for name, tenant := range streamedTenants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			storeTiny(t, db, tenant, 4, true)
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			q := sqlgen.New(tx)
			claimed, err := q.ClaimStreamedJobs(t.Context(), sqlgen.ClaimStreamedJobsParams{
				TenantIds: []pgtype.UUID{pgvalue.UUID(tenant)}, Quotas: []int32{4}, Firsts: []int32{1}, Lasts: []int32{1}, Priorities: []int16{0},
				FromRunAt: []pgtype.Timestamptz{{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}, FromID: []pgtype.UUID{{Valid: true}},
				Queue: "default", Kinds: []string{"tiny"}, MaxJobs: 4, Worker: "w", LeaseTtl: pgvalue.Interval(time.Minute),
			})
			if err != nil || len(claimed) != 4 {
				t.Fatalf("claimed %d jobs, %v; want 4", len(claimed), err)
			}
			if settled, err := q.SettleStreamed(t.Context(), sqlgen.SettleStreamedParams{
				Ids: []pgtype.UUID{claimed[3].ID}, Epochs: []int64{1}, Results: [][]byte{nil},
			}); err != nil || len(settled) != 1 {
				t.Fatalf("settled %d jobs, %v; want 1", len(settled), err)
			}
			if _, err := q.SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
				Ids: []pgtype.UUID{claimed[0].ID}, Epochs: []int64{1}, Results: [][]byte{nil},
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'retrying', epoch = 2, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, claimed[1].ID); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			found, err := rebuilt.Compare(t.Context(), db, nil)
			if err != nil || len(found.Differences) > 0 || found.Events != 11 {
				t.Errorf("%d events, %v, %v; want 11", found.Events, err, found.Differences)
			}
		})
	}
}

// Statements of builds before store events and leave it to the trigger to count them. Those builds work beside this
// one.
func TestTheStatementsOfABuildBeforeCountByTheTrigger(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	storeTiny(t, db, outbox.RootTenant, 10, true)
	for _, before := range []string{
		`
		WITH claimed AS (
			UPDATE outbox.jobs
			SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'w', lease_expires_at = now() + interval '1 min',
			    started_at = statement_timestamp()
			WHERE (SELECT outbox.stores_events())
			RETURNING jobs.*
		)
		INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT outbox.job_event_id(id, streamed, epoch, 'started'), tenant_id, 'job.started', id, 'application/json',
		       convert_to(outbox.job_event_fields(id, tenant_id, 'started', streamed, 'pending', 'running', epoch, attempt, queue, kind, key,
		           started_at, ',"worker":' || to_json(lease_owner)) || '}', 'UTF8')
		FROM claimed`, `
		WITH done AS (
			DELETE FROM outbox.jobs
			WHERE (SELECT outbox.stores_events())
			RETURNING jobs.*, clock_timestamp() AS finished_at
		), stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
			SELECT outbox.job_event_id(id, streamed + 1, epoch, 'completed'), tenant_id, 'job.completed', id, 'application/json',
			       convert_to(outbox.job_event_fields(id, tenant_id, 'completed', streamed + 1, status::text, 'succeeded', epoch, attempt, queue, kind,
			           key, finished_at, '') || '}', 'UTF8')
			FROM done
		)
		INSERT INTO outbox.history (status, id, tenant_id, kind, priority, attempt, max_attempts, lost_leases, epoch, payload, content_type,
		    run_at, created_at, started_at, streamed, queue, closed_from, worker, finished_at)
		SELECT 'succeeded', id, tenant_id, kind, priority, attempt, max_attempts, lost_leases, epoch, payload, content_type,
		    run_at, created_at, started_at, streamed, queue, status, lease_owner, finished_at
		FROM done`,
	} {
		if _, err := db.Exec(t.Context(), before); err != nil {
			t.Fatal(err)
		}
	}
	found, err := rebuilt.Compare(t.Context(), db, nil)
	if err != nil || len(found.Differences) > 0 || found.Jobs != 10 || found.Events != 30 {
		t.Errorf("%d jobs and %d events, %v, %v; want 10 and 30", found.Jobs, found.Events, err, found.Differences)
	}
}
