package operator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// edit starts an operation that edits jobs of a filter.
func edit(t *testing.T, o *operator.Operator, f operator.OpenFilter, e operator.JobEdit) operator.Operation {
	t.Helper()
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.EditJobs, Jobs: f, Edit: e})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// An edit changes the jobs that were counted and that still wait as they were: not what came later, nor what something
// has happened to, nor what would only expire, nor another tenant's.
func TestAnEditChangesTheJobsThatWereCounted(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		o, db := newRig(t)
		runner := operator.New(pgtest.Login(t, db, "outbox_api"))
		store := func(opts outbox.Options) outbox.ID {
			opts.Tenant, opts.Delay = tenant, time.Hour
			return enqueue(t, db, "mail", opts)
		}
		edited := []outbox.ID{store(outbox.Options{}), store(outbox.Options{Priority: 3}), store(outbox.Options{Hold: true}), store(outbox.Options{Streamed: true})}
		open(t, db, tenant, "mail", "retrying", 150)
		keyed := store(outbox.Options{Key: outbox.KeyRules{Name: "k"}})
		late := store(outbox.Options{Deadline: time.Now().Add(2 * time.Hour)})
		failed, touched := store(outbox.Options{}), store(outbox.Options{})
		foreign := enqueue(t, db, "mail", outbox.Options{Tenant: outbox.NewID(), Delay: time.Hour})

		filter := operator.OpenFilter{Tenant: tenant, Kind: "mail"}
		tied := operator.WithTenant(t.Context(), tenant)
		counted, err := runner.MatchOpenJobs(tied, operator.EditJobs, filter)
		if err != nil || counted.Matched != 158 || counted.Keyed != 1 || counted.ByStatus[outbox.Created] != 1 {
			t.Fatalf("counted %+v, %v; want 158 with one that has a key", counted, err)
		}
		after := store(outbox.Options{})
		exec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 1 WHERE id = $1`, touched)
		filter.AsOf = counted.AsOf
		at := time.Now().Add(3 * time.Hour).Truncate(time.Microsecond)
		op, err := runner.As(operator.Actor{Name: "ada", RequestID: "r1"}).Because("slow down").StartOperation(tied, operator.OperationSpec{
			Act: operator.EditJobs, Jobs: filter, Edit: operator.JobEdit{Queue: "slow", Priority: new(-7), RunAt: at},
		})
		if err != nil || op.Matched != 157 {
			t.Fatalf("started %+v, %v; want 157", op, err)
		}
		// One runs, fails and waits again before its turn comes: in the same status, and another epoch.
		exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w', started_at = now(), lease_expires_at = now() + interval '1 hour' WHERE id = $1`, failed)
		exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, failed)
		op = run(t, runner, o, op.ID, finished)
		if op.Done != 154 || op.Passed != 3 || op.Edit.Queue != "slow" || *op.Edit.Priority != -7 || !op.Edit.RunAt.Equal(at) {
			t.Errorf("%s: done %+v, want 154 and 3 left alone", tenant, op)
		}
		for _, id := range edited {
			if j := job(t, o, id); j.Queue != "slow" || j.Priority != -7 || !j.RunAt.Equal(at) || j.Epoch != 1 {
				t.Errorf("%s: an edited job is %+v", tenant, j)
			}
		}
		for name, id := range map[string]outbox.ID{"with a key": keyed, "past its deadline": late, "claimed meanwhile": failed, "touched": touched, "later": after, "another tenant's": foreign} {
			if j := job(t, o, id); j.Queue != "default" || j.Priority != 0 || j.RunAt.Equal(at) {
				t.Errorf("%s: a job %s was edited: %+v", tenant, name, j)
			}
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE act = 'job.edit' AND actor = 'ada' AND request_id = 'r1' AND reason = 'slow down'
			AND before @> '{"queue": "default"}' AND after @> '{"queue": "slow", "priority": -7}'`); n != 154 {
			t.Errorf("%s: %d edits are in the audit, want 154", tenant, n)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.events WHERE topic = 'job.edited' AND key = $1 AND convert_from(payload, 'UTF8')::jsonb @> '{"queue": "slow", "priority": -7}'`, edited[3].String()); n != 1 {
			t.Errorf("%s: %d events tell of the edit of the streamed job, want 1", tenant, n)
		}
		if found, err := rebuilt.Compare(t.Context(), db, nil); err != nil || found.Jobs != 1 || len(found.Differences) > 0 {
			t.Errorf("%s: %v; of %d streamed jobs, want 1, the events make others: %q", tenant, err, found.Jobs, found.Differences)
		}
	}
}

// A blocked job that is put off is pending. Its event is unblocked, and tells the priority that it was given with the
// time.
func TestTheEventsOfABlockedJobThatIsEdited(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, priority := range []int{3, 0} {
		id := enqueue(t, db, "mail", outbox.Options{Streamed: true, Priority: 7, Key: outbox.KeyRules{Name: fmt.Sprint(priority)}})
		exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, id)
		op := edit(t, o, operator.OpenFilter{Key: fmt.Sprint(priority)}, operator.JobEdit{Priority: &priority, RunAt: time.Now().Add(time.Hour)})
		if op = run(t, o, o, op.ID, finished); op.Done != 1 {
			t.Fatalf("edited %+v, want 1", op)
		}
	}
	found, err := rebuilt.Compare(t.Context(), db, nil)
	if err != nil || found.Jobs != 2 || found.Names[lifecycle.Unblocked] != 2 || len(found.Differences) > 0 {
		t.Errorf("%v; of %d jobs, want 2, whose events are %v the events make others: %q", err, found.Jobs, found.Names, found.Differences)
	}
}

// claiming claims in a transaction that the test ends.
func claiming(t *testing.T, db *pgxpool.Pool, queue string) (pgx.Tx, int) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) }) // does nothing if it was committed
	rows, err := sqlgen.New(tx).ClaimJobs(t.Context(), sqlgen.ClaimJobsParams{
		TenantIds: []pgtype.UUID{pgvalue.UUID(outbox.RootTenant)}, Quotas: []int32{100}, Firsts: []int32{1}, Lasts: []int32{1},
		Priorities: []int16{0}, FromID: []pgtype.UUID{{Valid: true}}, FromRunAt: []pgtype.Timestamptz{{InfinityModifier: pgtype.NegativeInfinity, Valid: true}},
		Queue: queue, Kinds: []string{"mail"}, MaxJobs: 100, Worker: "worker-1", LeaseTtl: pgvalue.Interval(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tx, len(rows)
}

// An edit and a claim of the same job, in both orders: the one that is first has it, and the other leaves it alone.
//
//	claim    J locked, running                          commit
//	edit                          J is locked: later            J runs, in another epoch: left alone
//
//	edit     J locked, in another queue                 commit
//	claim                         J is locked: nothing          J is in the other queue
func TestAnEditAndAClaimOfTheSameJob(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	first := enqueue(t, db, "mail", outbox.Options{})
	op := edit(t, o, operator.OpenFilter{}, operator.JobEdit{Queue: "slow"})
	claim, n := claiming(t, db, "default")
	if n != 1 {
		t.Fatalf("claimed %d, want 1", n)
	}
	if _, err := o.StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil || finished(now) || now.Done+now.Passed != 0 {
		t.Fatalf("while the claim is open: %+v, %v; want the job to be passed by", now, err)
	}
	if err := claim.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := run(t, o, o, op.ID, finished); now.Done != 0 || now.Passed != 1 {
		t.Errorf("after the claim: %+v; want the job left alone", now)
	}
	if j := job(t, o, first); j.Status != outbox.Running || j.Queue != "default" || j.Epoch != 1 {
		t.Errorf("the claimed job is %+v, want it as the claim has left it", j)
	}

	second := enqueue(t, db, "mail", outbox.Options{})
	op = edit(t, o, operator.OpenFilter{}, operator.JobEdit{Queue: "slow"})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	edited, err := sqlgen.New(tx).EditJobs(t.Context(), sqlgen.EditJobsParams{
		OperationID: pgvalue.UUID(op.ID), Ids: []pgtype.UUID{pgvalue.UUID(second)}, Among: []string{"pending"}, Queue: new("slow"), Actor: "ada",
	})
	if err != nil || len(edited) != 1 {
		t.Fatalf("edited %d, %v, want 1", len(edited), err)
	}
	if _, n := claiming(t, db, "default"); n != 0 {
		t.Errorf("claimed %d while the edit is open, want none", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, n := claiming(t, db, "default"); n != 0 {
		t.Errorf("claimed %d from the old queue, want none", n)
	}
	claim, n = claiming(t, db, "slow")
	if err := claim.Commit(t.Context()); err != nil || n != 1 {
		t.Fatalf("claimed %d from the new queue, %v, want 1", n, err)
	}
	if j := job(t, o, second); j.Status != outbox.Running || j.Epoch != 2 {
		t.Errorf("the edited job is %+v, want it running in epoch 2", j)
	}
	if now := run(t, o, o, op.ID, finished); now.Done != 0 || now.Passed != 1 {
		t.Errorf("the operation, whose job was edited by another: %+v; want it left alone", now)
	}
}

// An edit breaks neither the order nor the limit of a key, and leaves no key stuck.
func TestAnEditKeepsTheRulesOfKeys(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	store := func(name string, ordered bool) outbox.ID {
		return enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: name, Ordered: ordered}})
	}
	done := func(f operator.OpenFilter, e operator.JobEdit) operator.Operation {
		return run(t, o, o, edit(t, o, f, e).ID, finished)
	}
	hour := time.Now().Add(time.Hour)

	// The head of a line is put off, and those behind it wait; what is behind is never first, whatever its time.
	head, behind := store("line", true), store("line", true)
	exec(t, db, `UPDATE outbox.jobs SET run_at = now() + interval '2 hours' WHERE id = $1`, behind)
	if op := done(operator.OpenFilter{Key: "line", CreatedUntil: job(t, o, behind).CreatedAt}, operator.JobEdit{RunAt: hour}); op.Done != 1 {
		t.Fatalf("the head: %+v", op)
	}
	if op := done(operator.OpenFilter{Key: "line", CreatedSince: job(t, o, behind).CreatedAt}, operator.JobEdit{RunAt: time.Now()}); op.Done != 1 {
		t.Fatalf("behind: %+v", op)
	}
	if claimed := claim(t, db, "default"); len(claimed) != 0 {
		t.Errorf("claimed %v, want none before the head", claimed)
	}
	if op := done(operator.OpenFilter{Key: "line", Statuses: []outbox.Status{outbox.Pending}}, operator.JobEdit{RunAt: time.Now()}); op.Done != 1 {
		t.Fatalf("the head is due again: %+v", op)
	}
	if claimed := claim(t, db, "default"); len(claimed) != 1 || claimed[head] == 0 {
		t.Errorf("claimed %v, want the head %s", claimed, head)
	}

	// Of a key with one slot the next job is put off: the one that is blocked behind it moves on.
	first, next, last := store("slot", false), store("slot", false), store("slot", false)
	claimed := claim(t, db, "default")
	if claimed[first] == 0 || !settle(t, db, first, claimed[first], outbox.Succeeded) {
		t.Fatalf("claimed %v, want %s", claimed, first)
	}
	exec(t, db, `SELECT outbox.promote_keys(ARRAY[tenant_id], ARRAY[queue], ARRAY[key], ARRAY[1]) FROM outbox.jobs WHERE id = $1`, next)
	if op := done(operator.OpenFilter{Key: "slot", Statuses: []outbox.Status{outbox.Pending}}, operator.JobEdit{RunAt: hour}); op.Done != 1 {
		t.Fatalf("the next one: %+v", op)
	}
	if j := job(t, o, last); j.Status != outbox.Pending {
		t.Errorf("the last one is %s, want it to have moved on", j.Status)
	}
	if claimed = claim(t, db, "default"); len(claimed) != 1 || claimed[last] == 0 {
		t.Errorf("claimed %v, want %s", claimed, last)
	}
	// One that is blocked is put off: it waits for its time, and not for a slot.
	held := store("slot", false)
	if claimed = claim(t, db, "default"); len(claimed) != 0 || job(t, o, held).Status != outbox.Blocked {
		t.Fatalf("claimed %v, and the other is %s", claimed, job(t, o, held).Status)
	}
	if op := done(operator.OpenFilter{Key: "slot", Statuses: []outbox.Status{outbox.Blocked}}, operator.JobEdit{RunAt: hour}); op.Done != 1 || job(t, o, held).Status != outbox.Pending {
		t.Errorf("the blocked one is %+v after %+v, want it pending", job(t, o, held), op)
	}

	// None of them changes its queue.
	if op := done(operator.OpenFilter{Kind: "mail"}, operator.JobEdit{Queue: "slow", Priority: new(1)}); op.Done != 0 || op.Passed != 3 {
		t.Errorf("to another queue: %+v, want all 3 left alone", op)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.jobs WHERE queue <> 'default' OR priority <> 0`); n != 0 {
		t.Errorf("%d jobs with a key were moved or edited in part", n)
	}
}

// A message that a sink has refused stays in the sink's queue, which only its relay works off; its priority may change.
func TestAnEditLeavesAMessageInItsSinksQueue(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		held := enqueue(t, db, "mail", outbox.Options{Tenant: tenant})
		exec(t, db, `UPDATE outbox.jobs SET kind = 'relay:s', queue = 'relay:s' WHERE id = $1`, held)
		other := enqueue(t, db, "mail", outbox.Options{Tenant: tenant})
		all := operator.OpenFilter{Tenant: tenant}
		if op := run(t, o, o, edit(t, o, all, operator.JobEdit{Queue: "slow", Priority: new(3)}).ID, finished); op.Done != 1 || op.Passed != 1 {
			t.Errorf("to another queue: %+v, want one moved and one left alone", op)
		}
		if is, was := job(t, o, held).Queue, job(t, o, other).Queue; is != "relay:s" || was != "slow" {
			t.Errorf("the message is in queue %s and the other job in %s, want relay:s and slow", is, was)
		}
		if op := run(t, o, o, edit(t, o, all, operator.JobEdit{Priority: new(-5)}).ID, finished); op.Done != 2 {
			t.Errorf("another priority: %+v, want both edited", op)
		}
	}
}

func TestEditsThatAreRefused(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for name, n := range map[string]operator.OperationSpec{
		"nothing":            {Act: operator.EditJobs},
		"of another act":     {Act: operator.CancelJobs, Edit: operator.JobEdit{Queue: "q"}},
		"of dead letters":    {Act: operator.ReplayLetters, Edit: operator.JobEdit{Queue: "q"}},
		"a priority too far": {Act: operator.EditJobs, Edit: operator.JobEdit{Priority: new(1 << 15)}},
		"no queue's name":    {Act: operator.EditJobs, Edit: operator.JobEdit{Queue: "no blanks"}},
		"a sink's queue":     {Act: operator.EditJobs, Edit: operator.JobEdit{Queue: "relay:s"}},
		"a key's queue":      {Act: operator.EditJobs, Jobs: operator.OpenFilter{Key: "k"}, Edit: operator.JobEdit{Queue: "q"}},
		"a year too far":     {Act: operator.EditJobs, Edit: operator.JobEdit{RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}},
	} {
		_, err := o.StartOperation(t.Context(), n)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%s: %v, want an InvalidError", name, err)
		}
	}
}
