package operator_test

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// open stores waiting jobs of a tenant.
func open(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, kind, status string, n int) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, run_at)
		SELECT outbox.uuid_v7(), $1, $2, '{}', $3::text::outbox.job_status, now() + interval '1 hour' FROM generate_series(1, $4::integer)`, tenant, kind, status, n)
}

// An operation acts on the jobs that were counted, while they are in a status that was: not on what came later, nor on
// one that something has happened to in between, nor on another tenant's.
func TestAnOperationActsOnTheJobsThatWereCounted(t *testing.T) {
	t.Parallel()
	for act, in := range map[operator.OperationAct]string{operator.CancelJobs: "pending", operator.ReleaseJobs: "created", operator.RetryJobs: "retrying"} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID(), {}} {
			o, db := newRig(t)
			runner := operator.New(pgtest.Login(t, db, "outbox_api"))
			mine, other := tenant, outbox.NewID()
			meant := int64(250)
			if mine.IsZero() {
				mine, meant = outbox.RootTenant, 260
			}
			open(t, db, mine, "mail", in, 253)
			open(t, db, other, "mail", in, 10)
			open(t, db, mine, "bill", in, 5)
			// Keyed, in order: what waits behind a cancelled job moves on, by the operation's own doing.
			if act == operator.CancelJobs {
				meant += 3
				for range 3 {
					enqueue(t, db, "mail", outbox.Options{Tenant: mine, Key: outbox.KeyRules{Name: "k", Ordered: true}})
				}
			}
			filter := operator.OpenFilter{Tenant: tenant, Kind: "mail", Statuses: []outbox.Status{outbox.Status(in), outbox.Blocked, outbox.Failed}}
			tied := operator.WithTenant(t.Context(), tenant)
			counted, err := runner.MatchOpenJobs(tied, act, filter)
			if err != nil || counted.Matched != meant+3 || counted.ByStatus[outbox.Status(in)] == 0 {
				t.Fatalf("counted %+v, %v; want %d", counted, err, meant+3)
			}
			open(t, db, mine, "mail", in, 7)
			// One is claimed and fails, one is touched, one is cancelled.
			exec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 1, priority = 3 WHERE id IN (SELECT id FROM outbox.jobs WHERE tenant_id = $1 AND kind = 'mail' AND key IS NULL ORDER BY id LIMIT 3)`, mine)
			filter.AsOf = counted.AsOf
			op, err := runner.As(operator.Actor{Name: "ada", RequestID: "r1"}).StartOperation(tied, operator.OperationSpec{Act: act, Jobs: filter})
			if err != nil || op.Matched != meant {
				t.Fatalf("%s of %s: started %+v, %v; want %d", act, tenant, op, err, meant)
			}
			// And one of those that are meant has run meanwhile.
			moved := `status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w', started_at = now(), lease_expires_at = now() + interval '1 hour'`
			if act == operator.ReleaseJobs {
				moved = `status = 'pending'`
			}
			exec(t, db, `UPDATE outbox.jobs SET `+moved+`
				WHERE id = (SELECT max(job_id::text)::uuid FROM outbox.operation_jobs JOIN outbox.jobs ON jobs.id = job_id WHERE jobs.key IS NULL)`)
			// Another has run and waits again, as those do that nothing has happened to.
			exec(t, db, `UPDATE outbox.jobs SET attempt = 1, epoch = epoch + 1
				WHERE id = (SELECT min(job_id::text)::uuid FROM outbox.operation_jobs JOIN outbox.jobs ON jobs.id = job_id WHERE jobs.key IS NULL)`)
			op = run(t, runner, o, op.ID, finished)
			if op.Done != meant-2 || op.Passed != 2 || op.Jobs.Kind != "mail" || op.Jobs.Tenant != tenant {
				t.Errorf("%s of %s: done %+v, want %d and 2 left alone", act, tenant, op, meant-2)
			}
			if n := number(t, db, `SELECT count(DISTINCT job_id) FROM outbox.audit WHERE act = 'job.'||$1 AND actor = 'ada' AND request_id = 'r1'`, string(act)); n != meant-2 {
				t.Errorf("%s of %s: %d jobs are in the audit, want %d", act, tenant, n, meant-2)
			}
			if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE status::text = $1 AND run_at > now() AND kind = 'mail' AND tenant_id = $2`, in, mine); n != 11 {
				t.Errorf("%s of %s: %d are as they were, want the 7 that came later, the 3 that were touched and the one that ran", act, tenant, n)
			}
			if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != 0 {
				t.Errorf("%d jobs are left to do", n)
			}
		}
	}
}

// A running job is the one that was counted though its lease has been extended since, and its progress stored; one that
// has begun since, or begun again, is not.
func TestAnOperationActsOnTheRunningJobsThatWereCounted(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, key := range []string{"", "k"} {
			o, db := newRig(t)
			runner := operator.New(pgtest.Login(t, db, "outbox_api"))
			var ids []outbox.ID
			for n := range 6 {
				opts := outbox.Options{Tenant: tenant}
				if key != "" {
					opts.Key = outbox.KeyRules{Name: fmt.Sprint(key, n)}
				}
				ids = append(ids, enqueue(t, db, "mail", opts))
			}
			begins := func(ago time.Duration, ids ...outbox.ID) {
				exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'w', started_at = clock_timestamp() - $2::interval,
					lease_expires_at = now() + interval '1 minute' WHERE id = ANY ($1)`, ids, ago)
			}
			begins(time.Minute, ids[:4]...) // before any claim that may be in progress
			filter := operator.OpenFilter{Tenant: tenant, Statuses: []outbox.Status{outbox.Running}}
			tied := operator.WithTenant(t.Context(), tenant)
			counted, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter)
			if err != nil || counted.Matched != 4 {
				t.Fatalf("counted %+v, %v; want 4", counted, err)
			}
			exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() + interval '2 minutes' WHERE status = 'running'`)
			begins(0, ids[3]) // its worker has died, and another has it
			begins(0, ids[4:]...)
			filter.AsOf = counted.AsOf
			if again, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter); err != nil || again.Matched != 3 || again.AsOf != counted.AsOf {
				t.Errorf("counted again %+v, %v; want 3 of then", again, err)
			}
			op, err := runner.StartOperation(tied, operator.OperationSpec{Act: operator.CancelJobs, Jobs: filter})
			if err != nil || op.Matched != 3 {
				t.Fatalf("started %+v, %v; want 3", op, err)
			}
			if op = run(t, runner, o, op.ID, finished); op.Done != 3 {
				t.Errorf("done %+v, want 3", op)
			}
			if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE cancel_requested_at IS NOT NULL AND id = ANY ($1)`, ids[:3]); n != 3 {
				t.Errorf("%d of the 3 that were counted are asked to stop", n)
			}
			if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE cancel_requested_at IS NOT NULL`); n != 3 {
				t.Errorf("%d are asked to stop", n)
			}
		}
	}
}

// A job that somebody has released since it was counted is left alone, though it waits in a status that was meant.
func TestAnOperationLeavesAReleasedJobAlone(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		o, db := newRig(t)
		open(t, db, tenant, "mail", "created", 3)
		op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: tenant}})
		if err != nil || op.Matched != 3 {
			t.Fatalf("started %+v, %v; want 3", op, err)
		}
		page, err := o.Page(t.Context(), operator.Filter{Tenant: tenant, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		released := page.Jobs[0]
		if err := o.AtEpoch(released.Epoch).Release(t.Context(), released.ID); err != nil {
			t.Fatal(err)
		}
		refused, ok := errors.AsType[*operator.StatusError](o.AtEpoch(released.Epoch).Retry(t.Context(), released.ID))
		if !ok || refused.Status != outbox.Pending {
			t.Errorf("of %s: retried as it was before its release: %v, want a refusal", tenant, refused)
		}
		op = run(t, o, o, op.ID, finished)
		if after := job(t, o, released.ID); op.Done != 2 || op.Passed != 1 || after.Status != outbox.Pending {
			t.Errorf("of %s: done %+v, and the released job is %s; want it left alone", tenant, op, after.Status)
		}
	}
}

// While the statistics do not know an operation, because another of 20 000 jobs is all they know, a step looks its jobs
// up one by one, and does not begin with all of its operation's.
func TestAStepLooksItsJobsUpWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	known, unknown := outbox.NewID(), outbox.NewID()
	const store = `INSERT INTO outbox.operation_jobs (operation_id, job_id, tenant_id, epoch)
		SELECT $1, outbox.uuid_v7(), '00000000-0000-0000-0000-000000000001', 0 FROM generate_series(1, 20000)`
	exec(t, db, `ALTER TABLE outbox.operation_jobs SET (autovacuum_enabled = off)`)
	exec(t, db, store, known)
	exec(t, db, `ANALYZE outbox.operation_jobs`)
	exec(t, db, `ANALYZE outbox.jobs`) // empty
	exec(t, db, store, unknown)
	rows, _ := db.Query(t.Context(), `EXPLAIN SELECT jobs.id`+operator.AsCounted, unknown,
		[]outbox.ID{outbox.NewID(), outbox.NewID()})
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if !regexp.MustCompile(`Index Cond: \(\(operation_id = [^\n]* AND \(job_id = input.id\)`).MatchString(plan) {
		t.Errorf("the plan is\n%s\nwant both columns of the primary key looked up", plan)
	}
}

// A job that a handler's transaction has locked holds up no other, and has its turn once it is free.
func TestAnOperationPassesByAJobThatIsLocked(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	open(t, db, outbox.RootTenant, "mail", "pending", 150)
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs ORDER BY id LIMIT 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	run(t, o, o, op.ID, func(op operator.Operation) bool { return op.Done == 149 && !finished(op) })
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the others took %s", took)
	}
	if _, err := o.StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := run(t, o, o, op.ID, finished); done.Done != 150 {
		t.Errorf("done %+v, want 150", done)
	}
}

// A step locks the jobs that it looks at. Claims pass by them, and nothing else would tell the dispatchers that those
// on which the step has not acted are free again.
func TestAStepWakesTheDispatchersForWhatItLeaves(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		o, db := newRig(t)
		open(t, db, tenant, "mail", "pending", 2)
		step := func() bool {
			op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs})
			if err != nil {
				t.Fatal(err)
			}
			return woken(t, db, func() {
				for !finished(op) {
					_, _ = o.StepOperation(t.Context()) // it returns what the trigger says
					if op, err = o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
		if _, err := db.Exec(t.Context(), `
			CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
			CREATE TRIGGER refuse BEFORE DELETE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION refuse()`); err != nil {
			t.Fatal(err)
		}
		if !step() {
			t.Error("a step that passes over two jobs, which it has locked, wakes nobody")
		}
		if _, err := db.Exec(t.Context(), `DROP TRIGGER refuse ON outbox.jobs`); err != nil {
			t.Fatal(err)
		}
		if step() {
			t.Error("a step that cancels both jobs wakes the dispatchers")
		}
	}
}

// A key that somebody has locked holds up no step, however many of its jobs the step cancels: what waits behind them
// moves on when the step commits, or is the reaper's.
func TestAnOperationWaitsForNoKey(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		o, db := newRig(t)
		for _, key := range []string{"b", "a", "b", "a"} {
			enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}})
		}
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'a'), ($1, 'default', 'b') ON CONFLICT DO NOTHING`, tenant)
		op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.keys WHERE key = 'a' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if done := run(t, o, o, op.ID, finished); done.Done != 4 || done.Failure != "" {
			t.Errorf("done %+v, want 4", done)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("it took %s", took)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Jobs that wait behind another of their key are all cancelled: none becomes pending because one beside it has gone.
func TestBlockedJobsAreCancelledAll(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, ordered := range []bool{false, true} {
			for _, way := range []string{"each", "operation"} {
				o, db := newRig(t)
				var ids []outbox.ID
				for range 11 {
					ids = append(ids, enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k", Ordered: ordered}}))
				}
				exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id <> $1`, ids[0])
				exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k') ON CONFLICT DO NOTHING`, tenant)
				done := int64(0)
				if way == "each" {
					for _, id := range ids[1:] {
						if _, err := o.Only(outbox.Blocked).Cancel(t.Context(), id); err != nil {
							t.Error(err)
							continue
						}
						done++
					}
				} else {
					op, err := o.StartOperation(t.Context(), operator.OperationSpec{
						Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: tenant, Statuses: []outbox.Status{outbox.Blocked}},
					})
					if err != nil {
						t.Fatal(err)
					}
					done = run(t, o, o, op.ID, finished).Done
				}
				if done != 10 || number(t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'pending'`) != 1 {
					t.Errorf("%s, ordered %t, tenant %s: %d of 10 are cancelled", way, ordered, tenant, done)
				}
			}
		}
	}
}

// It keeps its rate, does nothing while it is stopped, and goes on with what is left when its process is killed.
func TestAnOperationOnJobsIsStoppedKilledAndResumed(t *testing.T) {
	t.Parallel()
	for _, n := range []operator.OperationSpec{{Act: operator.RetryJobs}, {Act: operator.EditJobs, Edit: operator.JobEdit{Priority: new(1)}}} {
		n.PerSecond = 800
		t.Run(string(n.Act), func(t *testing.T) {
			t.Parallel()
			stopKillAndResume(t, n)
		})
	}
}

func stopKillAndResume(t *testing.T, n operator.OperationSpec) {
	t.Helper()
	o, db := newRig(t)
	open(t, db, outbox.RootTenant, "mail", "retrying", 1000)
	op, err := o.StartOperation(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	retried := `SELECT count(*) FROM outbox.audit WHERE act = 'job.` + string(n.Act) + `'`
	for range 3 {
		seen := number(t, db, retried)
		child := osexec.Command(os.Args[0], "-test.run=^TestRunOperationsOfAChild$")
		child.Env = append(os.Environ(), childURL+"="+db.Config().ConnString())
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); number(t, db, retried) < seen+100; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the child does nothing")
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
	}
	stopped, err := o.StopOperation(t.Context(), outbox.ID{}, op.ID)
	if err != nil || stopped.Done >= 1000 || stopped.Done != number(t, db, retried) {
		t.Fatalf("stopped %+v, %v, with %d in the audit", stopped, err, number(t, db, retried))
	}
	for range 3 {
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, db, retried); n != stopped.Done {
		t.Errorf("%d were acted on though it is stopped, want %d", n, stopped.Done)
	}
	if _, err := o.ResumeOperation(t.Context(), outbox.ID{}, op.ID); err != nil {
		t.Fatal(err)
	}
	done := run(t, o, o, op.ID, func(op operator.Operation) bool { return finished(op) || op.Done+op.Passed > op.Matched })
	if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE epoch = 1`); done.Done != 1000 || n != 1000 || number(t, db, retried) != 1000 {
		t.Errorf("done %+v, with %d jobs in their next epoch; want 1000, each once", done, n)
	}
}

func TestOpenJobsThatAreRefused(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for name, f := range map[string]operator.OpenFilter{
		"no status":   {Statuses: []outbox.Status{"x"}},
		"no snapshot": {AsOf: "now"},
		"no text":     {Kind: "\x00"},
	} {
		_, counted := o.MatchOpenJobs(t.Context(), operator.CancelJobs, f)
		_, started := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs, Jobs: f})
		for _, err := range []error{counted, started} {
			if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
				t.Errorf("%s: %v, want an InvalidError", name, err)
			}
		}
	}
}
