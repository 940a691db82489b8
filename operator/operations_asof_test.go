package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An operation leaves out jobs that a savepoint, open or released, had stored before the count and its transaction
// commits after it: the snapshot of the count does not list the savepoint.
func TestAnOperationLeavesOutTheJobsOfASavepoint(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, then := range []string{`SELECT`, `RELEASE a`, `SAVEPOINT b`} {
			o, db := newRig(t)
			runner := operator.New(pgtest.Login(t, db, "outbox_api"))
			open(t, db, tenant, "mail", "pending", 10)
			producer, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = producer.Rollback(t.Context()) }()
			for _, sql := range []string{
				`INSERT INTO outbox.queues (queue) VALUES ('other')`, // the transaction has an id of its own
				`SAVEPOINT a`,
				`INSERT INTO outbox.jobs (id, tenant_id, kind, payload, run_at)
				 SELECT outbox.uuid_v7(), '` + tenant.String() + `', 'mail', '{}', now() + interval '1 hour' FROM generate_series(1, 5)`,
				then,
			} {
				if _, err := producer.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			open(t, db, tenant, "bill", "pending", 1) // a later transaction has committed
			tied := operator.WithTenant(t.Context(), tenant)
			filter := operator.OpenFilter{Tenant: tenant, Kind: "mail"}
			counted, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter)
			if err != nil || counted.Matched != 10 {
				t.Fatalf("counted %+v, %v; want 10", counted, err)
			}
			if err := producer.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			filter.AsOf = counted.AsOf
			if again, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter); err != nil || again.Matched != 10 {
				t.Errorf("%s of %s: counted again %+v, %v; want 10 of then", then, tenant, again, err)
			}
			op, err := runner.StartOperation(tied, operator.OperationSpec{Act: operator.CancelJobs, Jobs: filter})
			if err != nil || op.Matched != 10 {
				t.Errorf("%s of %s: started %+v, %v; want the 10 that were counted", then, tenant, op, err)
			}
			if op = run(t, runner, o, op.ID, finished); op.Done != 10 {
				t.Errorf("%s of %s: done %+v, want 10", then, tenant, op)
			}
			if all, err := runner.MatchOpenJobs(tied, operator.CancelJobs, operator.OpenFilter{Tenant: tenant, Kind: "mail"}); err != nil || all.Matched != 5 {
				t.Errorf("%s of %s: counted %+v, %v once it has committed; want its 5", then, tenant, all, err)
			}
		}
	}
}

// A job that was counted as pending, while a claim that had begun earlier had not committed yet, has changed since:
// though its attempt began before the count, and though its lease has been extended.
func TestAnOperationLeavesOutWhatAClaimInProgressTook(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, extended := range []bool{false, true} {
			_, db := newRig(t)
			runner := operator.New(pgtest.Login(t, db, "outbox_api"))
			open(t, db, tenant, "mail", "pending", 10)
			tied := operator.WithTenant(t.Context(), tenant)
			filter := operator.OpenFilter{Tenant: tenant}
			err := pgx.BeginFunc(t.Context(), db, func(worker pgx.Tx) error {
				_, err := worker.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w',
					started_at = statement_timestamp(), lease_expires_at = now() + interval '1 minute'
					WHERE id = (SELECT max(id::text)::uuid FROM outbox.jobs)`)
				if err != nil {
					return err
				}
				counted, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter)
				if counted.ByStatus[outbox.Pending] != 10 {
					t.Errorf("counted %+v, want 10 pending", counted)
				}
				filter.AsOf = counted.AsOf
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if extended {
				exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() + interval '2 minutes' WHERE status = 'running'`)
			}
			if again, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter); err != nil || again.Matched != 9 {
				t.Errorf("extended %t, of %s: counted again %+v, %v; want the 9 that wait", extended, tenant, again, err)
			}
		}
	}
}

// An AsOf that MatchOpenJobs cannot have returned is the caller's mistake: the server is not asked about it.
func TestAnAsOfThatNoCountHasReturned(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for text, want := range map[string]bool{
		"81734:81734:@1795824000000000":      true,
		"3:9:@0":                             true,
		"3:9:3,3,8@0":                        true,
		"4294967297:4294967298:4294967297@1": true,
		"9223372036854775807:9223372036854775807:@90000000000000000": true,

		"now":                       false,
		"81734:81734:":              false,
		"1:1:@":                     false,
		"1:1:@NaN":                  false,
		"1:1:@1e3":                  false,
		"1:1:@-1":                   false,
		"1:1:@99999999999999999999": false,
		"1:1:@9223372036854775807":  false,
		"@1":                        false,
		"1:1@1":                     false,
		"1:1:1@1":                   false,
		"2:1:@1":                    false,
		"3:9:8,3@1":                 false,
		"3:9:2@1":                   false,
		"3:9:9@1":                   false,
		"3:9:3,@1":                  false,
		"3:9: 3@1":                  false,
		"0:1:@1":                    false,
		"4294967296:4294967297:@1":  false,
		"-1:1:@1":                   false,
		"1:18446744073709551615:@1": false,
		"1:1:@1@1":                  false,
		"1:2:" + strings.Repeat("1,", 1<<14) + "1@1": false,
	} {
		f := operator.OpenFilter{AsOf: text}
		_, counted := o.MatchOpenJobs(t.Context(), operator.CancelJobs, f)
		started := operator.OperationSpec{Act: operator.CancelJobs, Jobs: f}.Validate()
		for _, err := range []error{counted, started} {
			if _, refused := errors.AsType[*outbox.InvalidError](err); refused == want || err != nil && !refused {
				t.Errorf("%.40s: %v; is one: %t", text, err, want)
			}
		}
	}
}

// A transaction that writes for long in this database is among those that a count of any login asks about. One of
// another database is not: a load of an hour there would stop every count here.
func TestACountAsksAboutTheWritersOfItsDatabase(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	write := func(db *pgxpool.Pool) (id int64) {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := func(o *operator.Operator) (id int64) {
		t.Helper()
		match, err := o.MatchOpenJobs(t.Context(), operator.CancelJobs, operator.OpenFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(match.AsOf, "%d:", &id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	api := operator.New(pgtest.Login(t, db, "outbox_api"))
	elsewhere := write(pgtest.New(t))
	exec(t, db, `SELECT pg_current_xact_id()`) // a later one, which ends
	if letters, err := api.MatchDeadLetters(t.Context(), operator.DeadLetterFilter{}); err != nil || letters.Unsettled {
		t.Errorf("beside a writer of another database: %+v, %v; want nothing unsettled", letters, err)
	}
	for name, o := range map[string]*operator.Operator{"the owner": o, "outbox_api": api} {
		if id := first(o); id <= elsewhere {
			t.Errorf("%s asks from %d on, want none from another database's %d", name, id, elsewhere)
		}
	}
	here := write(db)
	if letters, err := api.MatchDeadLetters(t.Context(), operator.DeadLetterFilter{}); err != nil || !letters.Unsettled {
		t.Errorf("beside a writer: %+v, %v; want it unsettled", letters, err)
	}
	for name, o := range map[string]*operator.Operator{"the owner": o, "outbox_api": api} {
		if id := first(o); id > here {
			t.Errorf("%s asks from %d on, want from the writer's %d", name, id, here)
		}
	}
}
