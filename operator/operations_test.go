package operator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// bury stores dead letters of a tenant.
func bury(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, n int) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, attempt, epoch, failed_at, error_fingerprint)
		SELECT outbox.uuid_v7(), $1, 'mail', '{}', 'dead', 25, 1, clock_timestamp(), 'f' FROM generate_series(1, $2::integer)`, tenant, n); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// run takes steps until the operation satisfies a condition.
func run(t *testing.T, runner *operator.Operator, o *operator.Operator, id outbox.ID, until func(operator.Operation) bool) operator.Operation {
	t.Helper()
	for range 1000 {
		again, err := runner.StepOperation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		op, err := o.Operation(t.Context(), outbox.ID{}, id)
		if err != nil {
			t.Fatal(err)
		}
		if until(op) {
			return op
		}
		time.Sleep(min(again, 100*time.Millisecond))
	}
	t.Fatal("the operation does not come so far")
	return operator.Operation{}
}

func finished(op operator.Operation) bool { return !op.FinishedAt.IsZero() }

const replayedSQL = `SELECT count(*) FROM outbox.audit WHERE act = 'job.replay'`

// An operation acts on the dead letters that were counted: not on what dies afterwards, nor on another tenant's, by
// the login of the API and by the owner.
func TestAnOperationDoesWhatWasCounted(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID(), {}} {
		for _, act := range []operator.OperationAct{operator.ReplayLetters, operator.DismissLetters} {
			o, db := newRig(t)
			runner := operator.New(pgtest.Login(t, db, "outbox_api"))
			mine, other := tenant, outbox.NewID()
			meant := int64(700)
			if mine.IsZero() {
				mine, meant = outbox.RootTenant, 710
			}
			bury(t, db, mine, 700)
			bury(t, db, other, 10)
			filter := operator.DeadLetterFilter{Tenant: tenant, Fingerprint: "f"}
			counted, err := o.MatchDeadLetters(t.Context(), filter)
			if err != nil || counted.Matched != meant {
				t.Fatalf("counted %d, %v; want %d", counted.Matched, err, meant)
			}
			bury(t, db, mine, 5)
			filter.FailedUntil = counted.FailedUntil
			ada := runner.As(operator.Actor{Name: "ada", RequestID: "r1"}).Because("the relay is back")
			op, err := ada.StartOperation(operator.WithTenant(t.Context(), tenant), operator.OperationSpec{Act: act, Filter: filter})
			if err != nil || op.Matched != meant {
				t.Fatalf("started %+v, %v", op, err)
			}
			op = run(t, runner, o, op.ID, finished)
			want := operator.Operation{
				ID: op.ID, Tenant: tenant, Act: act, Filter: filter, Matched: meant, Done: meant, Actor: "ada", Reason: "the relay is back", RequestID: "r1",
				StartedAt: op.StartedAt, FinishedAt: op.FinishedAt,
			}
			if diff := cmp.Diff(want, op, cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); diff != "" {
				t.Errorf("operation (-want +got):\n%s", diff)
			}
			left := int64(715) - meant
			if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'dead'`); n != left {
				t.Errorf("%s of %s leaves %d dead letters, want %d", act, tenant, n, left)
			}
			if n := number(t, db, `SELECT count(DISTINCT job_id) FROM outbox.audit WHERE act = 'job.'||$1 AND actor = 'ada' AND request_id = 'r1' AND reason = 'the relay is back'`, string(act)); n != meant {
				t.Errorf("%d jobs are in the audit, want %d", n, meant)
			}
			if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE act = 'operation.start' AND target = $1`, op.ID.String()); n != 1 {
				t.Errorf("its start is in the audit %d times", n)
			}
			if tenant.IsZero() {
				continue
			}
			for _, who := range []*operator.Operator{o, runner} {
				theirs := operator.WithTenant(t.Context(), other)
				if list, err := who.Operations(theirs, other, outbox.ID{}, 0); err != nil || len(list) != 0 {
					t.Errorf("another tenant sees %v, %v", list, err)
				}
				if _, err := who.StopOperation(theirs, other, op.ID); !errors.Is(err, operator.ErrOperationNotFound) {
					t.Errorf("another tenant stops it: %v", err)
				}
			}
		}
	}
}

// A stopped operation does nothing, and resumed it goes on with what was meant: a job that it has replayed and that
// has died again stays dead.
func TestAnOperationIsStoppedAndResumed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	bury(t, db, outbox.RootTenant, 40)
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, PerSecond: 10})
	if err != nil {
		t.Fatal(err)
	}
	run(t, o, o, op.ID, func(op operator.Operation) bool { return op.Done > 0 })
	stopped, err := o.StopOperation(t.Context(), outbox.ID{}, op.ID)
	if err != nil || stopped.StoppedAt.IsZero() || stopped.Done != 10 {
		t.Fatalf("stopped %+v, %v; want 10 done", stopped, err)
	}
	if again, err := o.StopOperation(t.Context(), outbox.ID{}, op.ID); err != nil || !again.StoppedAt.Equal(stopped.StoppedAt) {
		t.Errorf("stopped again: %+v, %v", again, err)
	}
	time.Sleep(1100 * time.Millisecond)
	for range 3 {
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, db, replayedSQL); n != 10 {
		t.Errorf("%d were replayed though it is stopped, want 10", n)
	}
	if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w', started_at = now(), lease_expires_at = now() WHERE status = 'pending'`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, failed_at = clock_timestamp(), error_fingerprint = 'f' WHERE status = 'running'`); err != nil {
		t.Fatal(err)
	}
	if _, err := o.ResumeOperation(t.Context(), outbox.ID{}, op.ID); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	done := run(t, o, o, op.ID, finished)
	if done.Done != 40 || number(t, db, replayedSQL) != 40 || number(t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'dead'`) != 10 {
		t.Errorf("done %+v, with %d in the audit; want 40, and those that died again dead", done, number(t, db, replayedSQL))
	}
	// 30 at 10 a second: in three steps a second apart.
	if took := time.Since(begun); took < 1900*time.Millisecond {
		t.Errorf("the rest took %s, want two seconds at its rate", took)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE act IN ('operation.stop', 'operation.resume')`); n != 2 {
		t.Errorf("%d entries say that it was stopped and resumed, want 2", n)
	}
}

// Two that run operations share the work, and a step that fails does not keep other operations from theirs.
func TestOperationsOfSeveralRunners(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	bury(t, db, outbox.RootTenant, 3000)
	broken, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.DismissLetters, Filter: operator.DeadLetterFilter{Kind: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `UPDATE outbox.operations SET filter = '[]'`); err != nil {
		t.Fatal(err)
	}
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- o.RunOperations(ctx, nil) }()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if now, err := o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", now, err)
		} else if finished(now) {
			break
		}
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := number(t, db, replayedSQL); n != 3000 {
		t.Errorf("%d jobs were replayed, want each of 3000 once", n)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.operations WHERE id = $1 AND finished_at IS NULL AND failure LIKE '%filter%'`, broken.ID); n != 1 {
		t.Error("the broken one does not say what it failed of")
	}
}

// Those that are stopped count, too: ten times as many are kept of a tenant, and of all tenants.
func TestStoppedOperationsDoNotPileUp(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, tenant := range []outbox.ID{{}, outbox.RootTenant, {15: 9}} {
		n := operator.OperationSpec{Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Tenant: tenant}}
		if _, err := o.StartOperation(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), `INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id, stopped_at)
			SELECT gen_random_uuid(), NULLIF($1::uuid, '00000000-0000-0000-0000-000000000000'), 'dismiss', '{}', 0, 0, '', '', '', now() FROM generate_series(1, 999)`, tenant); err != nil {
			t.Fatal(err)
		}
		if _, err := o.StartOperation(t.Context(), n); !errors.Is(err, operator.ErrTooManyOperations) {
			t.Errorf("tenant %s: the 1001st is %v, want a refusal", tenant, err)
		}
	}
}

// However many operations a tenant has, another's and that of all tenants have their turn after a few steps. No tenant
// has more than 100 under way by StartOperation.
func TestOperationsOfOneTenantHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	many, other := outbox.NewID(), outbox.NewID()
	start := func(tenant outbox.ID, act operator.OperationAct) (outbox.ID, error) {
		op, err := o.StartOperation(t.Context(), operator.OperationSpec{
			Act: act, Filter: operator.DeadLetterFilter{Tenant: tenant}, Jobs: operator.OpenFilter{Tenant: tenant},
		})
		return op.ID, err
	}
	var first outbox.ID
	for i := range 100 {
		var err error
		if first, err = start(many, []operator.OperationAct{operator.ReplayLetters, operator.CancelJobs}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	for _, act := range []operator.OperationAct{operator.DismissLetters, operator.CancelJobs} {
		if _, err := start(many, act); !errors.Is(err, operator.ErrTooManyOperations) {
			t.Errorf("the 101st is %v, want a refusal", err)
		}
	}
	// One that is stopped makes room, but does not come back beside the one that took it.
	if _, err := o.StopOperation(t.Context(), many, first); err != nil {
		t.Fatal(err)
	}
	if _, err := start(many, operator.DismissLetters); err != nil {
		t.Fatal(err)
	}
	if _, err := o.ResumeOperation(t.Context(), many, first); !errors.Is(err, operator.ErrTooManyOperations) {
		t.Errorf("the 101st is resumed: %v, want a refusal", err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id)
		SELECT gen_random_uuid(), $1, 'dismiss', '{"kind": "none"}', 0, 0, '', '', '' FROM generate_series(1, 100)`, many); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []outbox.ID{{}, outbox.RootTenant, other} {
		id, err := start(tenant, operator.ReplayLetters)
		if err != nil {
			t.Fatal(err)
		}
		steps := 0 // each of two tenants is drawn half of the time
		for ; number(t, db, `SELECT count(*) FROM outbox.operations WHERE id = $1 AND finished_at IS NULL`, id) > 0; steps++ {
			if _, err := o.StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if steps > 40 {
			t.Errorf("that of tenant %s has come after %d steps, want a few", tenant, steps)
		}
	}
	if _, err := start(many, operator.ReplayLetters); err == nil {
		t.Error("there is room for one of a tenant that has more than 100 open")
	}
}

const childURL = "OPERATIONS_TEST_URL"

// TestRunOperationsOfAChild runs in the process that the test below kills.
func TestRunOperationsOfAChild(t *testing.T) {
	url := os.Getenv(childURL)
	if url == "" {
		t.Skip("is run by TestAnOperationSurvivesItsProcess")
	}
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := operator.New(db).RunOperations(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// A process that runs operations is killed again and again, in the middle of steps; the next one goes on. Each dead
// letter is replayed once, and what the operation says is what the audit has.
func TestAnOperationSurvivesItsProcess(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	bury(t, db, outbox.RootTenant, 1000)
	bury(t, db, outbox.NewID(), 1000)
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, PerSecond: 400})
	if err != nil {
		t.Fatal(err)
	}
	bury(t, db, outbox.RootTenant, 10)
	kills := 0
	for seen := int64(0); kills < 4; kills++ {
		child := osexec.Command(os.Args[0], "-test.run=^TestRunOperationsOfAChild$")
		child.Env = append(os.Environ(), childURL+"="+db.Config().ConnString())
		var out strings.Builder
		child.Stdout, child.Stderr = &out, &out
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); number(t, db, replayedSQL) < seen+200; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the child replays nothing: %s", out.String())
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
		seen = number(t, db, replayedSQL)
	}
	before, err := o.Operation(t.Context(), outbox.ID{}, op.ID)
	if err != nil || finished(before) {
		t.Fatalf("after %d kills: %+v, %v; want it not to be done", kills, before, err)
	}
	done := run(t, o, o, op.ID, finished)
	if done.Done != 2000 || done.Passed != 0 || number(t, db, replayedSQL) != 2000 || number(t, db, `SELECT count(DISTINCT job_id) FROM outbox.audit WHERE act = 'job.replay'`) != 2000 {
		t.Errorf("done %d and passed over %d, with %d in the audit; want 2000 jobs, each once", done.Done, done.Passed, number(t, db, replayedSQL))
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'dead'`); n != 10 {
		t.Errorf("%d dead letters are left, want the 10 that died later", n)
	}
}

func TestOperationsThatAreRefused(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for name, n := range map[string]operator.OperationSpec{
		"no act":             {},
		"a rate of dismiss":  {Act: operator.DismissLetters, PerSecond: 1},
		"a rate of nothing":  {Act: operator.ReplayLetters, PerSecond: 1e-9},
		"a status of others": {Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Status: outbox.Pending}},
	} {
		_, err := o.StartOperation(t.Context(), n)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%s: %v, want an InvalidError", name, err)
		}
	}
	if _, err := o.ResumeOperation(t.Context(), outbox.ID{}, outbox.NewID()); !errors.Is(err, operator.ErrOperationNotFound) {
		t.Errorf("an operation that is not there: %v", err)
	}
}

// A finished operation has passed by the dead letters that somebody else handled before its turn.
func TestAnOperationCountsTheLettersThatOthersHandled(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		o, db := newRig(t)
		open(t, db, tenant, "mail", "dead", 10)
		exec(t, db, `UPDATE outbox.jobs SET failed_at = now()`)
		op, err := o.StartOperation(t.Context(), operator.OperationSpec{
			Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Tenant: tenant},
		})
		if err != nil || op.Matched != 10 {
			t.Fatalf("started %+v, %v; want 10", op, err)
		}
		page, err := o.Page(t.Context(), operator.Filter{Tenant: tenant, Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			if err := o.Dismiss(t.Context(), j.ID); err != nil {
				t.Fatal(err)
			}
		}
		if op = run(t, o, o, op.ID, finished); op.Done != 6 || op.Passed != 4 {
			t.Errorf("of %s: done %+v, want 6 and the other 4 passed", tenant, op)
		}
	}
}

// A job on which the database refuses the act, because of a user's trigger, keeps an operation from no other job: the
// operation passes over it, and its runner hears why.
func TestAnOperationPassesOverAJobThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, n := range []operator.OperationSpec{
			{Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: tenant}},
			{Act: operator.EditJobs, Jobs: operator.OpenFilter{Tenant: tenant}, Edit: operator.JobEdit{Queue: "other"}},
			{Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Tenant: tenant}},
			{Act: operator.DismissLetters, Filter: operator.DeadLetterFilter{Tenant: tenant}},
		} {
			t.Run(fmt.Sprintf("%s of %s", n.Act, tenant), func(t *testing.T) {
				t.Parallel()
				o, db := newRig(t)
				open(t, db, tenant, "mail", "pending", 150)
				bury(t, db, tenant, 150)
				if _, err := db.Exec(t.Context(), `
					CREATE TABLE refused AS
					SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY status ORDER BY id) AS n FROM outbox.jobs) AS j WHERE n IN (1, 77, 78, 150);
					CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
						IF EXISTS (SELECT FROM refused WHERE id = OLD.id) THEN RAISE 'not this one'; END IF;
						RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
					END $$;
					CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION refuse()`); err != nil {
					t.Fatal(err)
				}
				op, err := o.StartOperation(t.Context(), n)
				if err != nil {
					t.Fatal(err)
				}
				heard := 0
				for !finished(op) {
					if _, err = o.StepOperation(t.Context()); err != nil {
						if heard++; !strings.Contains(err.Error(), "not this one") || heard > 4 {
							t.Fatal(err)
						}
					}
					if op, err = o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil {
						t.Fatal(err)
					}
				}
				if op.Matched != 150 || op.Done != 146 || op.Passed != 4 || heard != 4 {
					t.Errorf("done %+v, and heard of %d; want 146 done, and to hear of the 4 that were passed over", op, heard)
				}
			})
		}
	}
}

// An operation keeps its rate within five parts of a hundred, and a stop takes effect within a second.
func TestOperationsKeepTheirRate(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	bury(t, db, outbox.RootTenant, 1000)
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, PerSecond: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.RunOperations(ctx, nil) }()
	time.Sleep(6 * time.Second)
	if _, err := o.StopOperation(t.Context(), outbox.ID{}, op.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var rate, after float64
	err = db.QueryRow(t.Context(), `SELECT (count(*) - count(*) FILTER (WHERE act.at = ends.latest)) / extract(epoch FROM max(ends.latest) - min(ends.first)),
			extract(epoch FROM max(ends.latest) - max(stopped.at))
		FROM outbox.audit AS act, (SELECT max(at) AS latest, min(at) AS first FROM outbox.audit WHERE act = 'job.replay') AS ends,
			(SELECT at FROM outbox.audit WHERE act = 'operation.stop') AS stopped WHERE act.act = 'job.replay'`).Scan(&rate, &after)
	// On a busy machine the first step, or the latest, is some tenths of a second late.
	if err != nil || rate < 85 || rate > 115 || after > 1 {
		t.Errorf("%.1f jobs a second, the latest %.1f s after the stop, %v; want 100, and at most 1 s", rate, after, err)
	}
}

// An operation is found by its id even if no list, which goes from id to id, can begin above it.
func TestAnOperationIsFoundByAnyID(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	highest := outbox.ID(bytes.Repeat([]byte{0xff}, 16))
	exec(t, db, `INSERT INTO outbox.operations (id, act, filter, per_second, matched, actor, reason, request_id) VALUES ($1, 'replay', '{}', 0, 0, 'ada', '', '')`, highest)
	if op, err := o.Operation(t.Context(), outbox.ID{}, highest); err != nil || op.ID != highest {
		t.Errorf("%+v, %v", op, err)
	}
}

// An operation that was started without a request, as by the command, has its id in place of it: its acts are not taken
// for those of others.
func TestAnOperationHasARequest(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	reach(t, db, outbox.Dead)
	id, _ := reach(t, db, outbox.Pending)
	for _, n := range []operator.OperationSpec{
		{Act: operator.DismissLetters}, {Act: operator.CancelJobs},
	} {
		op, err := o.StartOperation(t.Context(), n)
		if err != nil || op.RequestID != op.ID.String() || op.ID.IsZero() {
			t.Fatalf("%s: started %+v, %v; want its id as its request", n.Act, op, err)
		}
		for range 5 {
			if _, err := o.StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if others, err := o.OthersActs(t.Context(), op, time.Now().Add(-time.Hour)); n.Act == operator.DismissLetters && (err != nil || len(others) != 0) {
			t.Errorf("%s: its own acts count as those of others: %+v, %v", n.Act, others, err)
		}
	}
	if got := job(t, o, id).Status; got != outbox.Cancelled {
		t.Errorf("the job is %s", got)
	}
}
