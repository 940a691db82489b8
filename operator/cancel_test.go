package operator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func exec(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// inStatus returns a new job in any status, with the epoch of its last claim.
func inStatus(t *testing.T, o *operator.Operator, db *pgxpool.Pool, status outbox.Status) (id outbox.ID, epoch int64) {
	t.Helper()
	switch status {
	case outbox.Created:
		return enqueue(t, db, "mail", outbox.Options{Hold: true}), 0
	case outbox.Blocked:
		id = enqueue(t, db, "mail", outbox.Options{})
		exec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, id)
		return id, 0
	case outbox.Cancelled, outbox.Dismissed:
		id, _ = reach(t, db, map[outbox.Status]outbox.Status{outbox.Cancelled: outbox.Pending, outbox.Dismissed: outbox.Dead}[status])
		if status == outbox.Dismissed {
			if err := o.Dismiss(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		} else if _, err := o.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return id, 0
	}
	return reach(t, db, status)
}

// What Cancel does depends on where the job stands; to repeat it changes nothing.
func TestCancelIsThreeWay(t *testing.T) {
	t.Parallel()
	waits := []outbox.Status{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying, outbox.Cancelled}
	refused := []outbox.Status{outbox.Succeeded, outbox.Dismissed, outbox.Failed, outbox.Dead}
	for _, status := range append(append([]outbox.Status{outbox.Running}, waits...), refused...) {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			id, _ := inStatus(t, o, db, status)
			before := job(t, o, id)
			for range 2 {
				done, err := o.Cancel(t.Context(), id)
				after := job(t, o, id)
				switch {
				case status == outbox.Running:
					if done != operator.CancelRequested || err != nil || after.Status != outbox.Running || after.Epoch != before.Epoch || after.CancelRequestedAt.IsZero() {
						t.Errorf("got %q, %v, and the job is %+v, want it asked to stop and nothing else", done, err, after)
					}
				case slices.Contains(waits, status):
					if done != operator.Cancelled || err != nil || after.Status != outbox.Cancelled || after.FinishedAt.IsZero() {
						t.Errorf("got %q, %v, and the job is %+v, want it cancelled", done, err, after)
					}
					if want := before.Epoch + 1; after.Epoch != want && status != outbox.Cancelled {
						t.Errorf("epoch = %d, want %d", after.Epoch, want)
					}
				default:
					said, ok := errors.AsType[*operator.StatusError](err)
					if !ok || said.Status != status || said.Act != "cancel" || done != "" || after.Epoch != before.Epoch || after.Status != status {
						t.Errorf("got %q, %v, and the job is %+v, want it left alone and its status said", done, err, after)
					}
				}
			}
			if status == outbox.Running {
				first := job(t, o, id).CancelRequestedAt
				if _, err := o.Cancel(t.Context(), id); err != nil || !job(t, o, id).CancelRequestedAt.Equal(first) {
					t.Errorf("a repeat moved the time of the request, %v", err)
				}
			}
		})
	}
}

func TestCancelOfARunningJobWakesDispatchers(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, _ := reach(t, db, outbox.Running)
	if !woken(t, db, func() {
		if _, err := o.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("nobody was woken")
	}
}

func TestNobodyCancelsOrReleasesAJobThatIsNotThere(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	_, err := o.Cancel(t.Context(), outbox.NewID())
	if !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("cancel = %v, want ErrNotFound", err)
	}
	if err := o.Release(t.Context(), outbox.NewID()); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("release = %v, want ErrNotFound", err)
	}
}

// A job that is cancelled while it waits for another attempt fences the worker of
// the last one.
func TestACancelledJobFencesAZombie(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, zombie := reach(t, db, outbox.Retrying)
	if _, err := o.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for epoch := zombie; epoch < zombie+3; epoch++ {
		for _, status := range []outbox.Status{outbox.Succeeded, outbox.Retrying} {
			if settle(t, db, id, epoch, status) {
				t.Errorf("%s with epoch %d was accepted", status, epoch)
			}
		}
	}
	if got := claim(t, db, "default"); len(got) != 0 {
		t.Errorf("claimed %v", got)
	}
}

// Every order of a cancellation and what else may happen to the job: the first
// one holds the row's lock until the second waits for it.
func TestCancelRacesWithWhateverHappensToTheJob(t *testing.T) {
	t.Parallel()
	claimIn := func(ctx context.Context, tx outbox.DB, _ outbox.ID, _ int64) error {
		_, err := sqlgen.New(tx).ClaimJobs(ctx, sqlgen.ClaimJobsParams{
			TenantIds: []pgtype.UUID{{Bytes: outbox.RootTenant, Valid: true}}, Quotas: []int32{1}, Firsts: []int32{1}, Lasts: []int32{1},
			Priorities: []int16{0}, FromID: []pgtype.UUID{{Valid: true}},
			FromRunAt: []pgtype.Timestamptz{{InfinityModifier: pgtype.NegativeInfinity, Valid: true}},
			Queue:     "default", Kinds: []string{"mail"}, MaxJobs: 1, Worker: "w", LeaseTtl: hour,
		})
		return err
	}
	succeed := func(ctx context.Context, tx outbox.DB, id outbox.ID, epoch int64) error {
		_, err := sqlgen.New(tx).SettleSucceeded(ctx, sqlgen.SettleSucceededParams{Ids: one(id), Epochs: []int64{epoch}, Results: [][]byte{nil}})
		return err
	}
	settleAs := func(status outbox.Status) func(context.Context, outbox.DB, outbox.ID, int64) error {
		return func(ctx context.Context, tx outbox.DB, id outbox.ID, epoch int64) error {
			_, err := sqlgen.New(tx).SettleUnfinished(ctx, sqlgen.SettleUnfinishedParams{
				Ids: one(id), Epochs: []int64{epoch}, Statuses: []string{string(status)}, Delays: []pgtype.Interval{hour},
				ErrorCodes: []string{"smtp"}, ErrorMessages: []string{"full"}, Stacks: []string{""}, Worker: "w",
			})
			return err
		}
	}
	cancel := func(ctx context.Context, tx outbox.DB, id outbox.ID, _ int64) error {
		_, err := sqlgen.New(tx).CancelJob(ctx, sqlgen.CancelJobParams{ID: pgvalue.UUID(id), Actor: "ada"})
		return err
	}
	type act = func(context.Context, outbox.DB, outbox.ID, int64) error
	for name, c := range map[string]struct {
		from          outbox.Status
		first, second act
		want          outbox.Status
		asked         bool
	}{
		"a claim, then cancel: the worker is asked":       {outbox.Pending, claimIn, cancel, outbox.Running, true},
		"success, then cancel: it is said to be closed":   {outbox.Running, succeed, cancel, outbox.Succeeded, false},
		"cancel, then success: it succeeded all the same": {outbox.Running, cancel, succeed, outbox.Succeeded, true},
		"a failure, then cancel: it waits no more":        {outbox.Running, settleAs(outbox.Retrying), cancel, outbox.Cancelled, false},
		"the last failure, then cancel: a dead letter":    {outbox.Running, settleAs(outbox.Dead), cancel, outbox.Dead, false},
		"cancel, then a failure: refused, see dispatcher": {outbox.Running, cancel, settleAs(outbox.Retrying), outbox.Running, true},
		"cancel, then the last failure: refused, too":     {outbox.Running, cancel, settleAs(outbox.Dead), outbox.Running, true},
		"cancel, then a snooze: refused, too":             {outbox.Running, cancel, settleAs(outbox.Pending), outbox.Running, true},
		"cancel, then cancel":                             {outbox.Retrying, cancel, cancel, outbox.Cancelled, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			id, epoch := reach(t, db, c.from)
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if err := c.first(t.Context(), tx, id, epoch); err != nil {
				t.Fatal(err)
			}
			second := make(chan error, 1)
			go func() { second <- c.second(t.Context(), db, id, epoch) }()
			pgtest.AwaitLocks(t, db, 1)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-second; err != nil {
				t.Fatal(err)
			}
			after := job(t, o, id)
			if after.Status != c.want || after.CancelRequestedAt.IsZero() == c.asked {
				t.Errorf("the job is %s, asked to stop at %s; want %s", after.Status, after.CancelRequestedAt, c.want)
			}
			var places int
			if err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.history)`).Scan(&places); err != nil || places != 1 {
				t.Errorf("the job is in %d places, %v", places, err)
			}
		})
	}
}

// A claim does not wait for a cancellation: it leaves the job alone.
func TestAClaimSkipsAJobThatIsBeingCancelled(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, _ := reach(t, db, outbox.Pending)
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := sqlgen.New(tx).CancelJob(t.Context(), sqlgen.CancelJobParams{ID: pgvalue.UUID(id), Actor: "ada"}); err != nil {
			return err
		}
		if got := claim(t, db, "default"); len(got) != 0 {
			t.Errorf("claimed %v meanwhile", got)
		}
		return nil
	})
	if err != nil || job(t, o, id).Status != outbox.Cancelled {
		t.Errorf("the job is %s, %v", job(t, o, id).Status, err)
	}
}

func TestAHeldJobRunsOnceItIsReleased(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	held := enqueue(t, db, "mail", outbox.Options{Hold: true})
	exec(t, db, `UPDATE outbox.jobs SET run_at = now() - interval '1 hour'`)
	if got := claim(t, db, "default"); len(got) != 0 {
		t.Fatalf("claimed %v before it was released", got)
	}
	if !woken(t, db, func() {
		if err := o.Release(t.Context(), held); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("nobody was woken")
	}
	// It is due now: claims look from where they have come to, not an hour back.
	if after := job(t, o, held); after.Status != outbox.Pending || time.Since(after.RunAt) > 30*time.Minute {
		t.Errorf("released, it is %s and was due at %s", after.Status, after.RunAt)
	}
	if got := claim(t, db, "default"); len(got) != 1 {
		t.Errorf("claimed %v, want the job", got)
	}
	refused, ok := errors.AsType[*operator.StatusError](o.Release(t.Context(), held))
	if !ok || refused.Status != outbox.Running || refused.Act != "release" {
		t.Errorf("released again: %v, want a refusal", refused)
	}

	later := enqueue(t, db, "mail", outbox.Options{Hold: true, Delay: time.Hour})
	if err := o.Release(t.Context(), later); err != nil || time.Until(job(t, o, later).RunAt) < 50*time.Minute {
		t.Errorf("released before its time it is due at %s, %v; want in an hour", job(t, o, later).RunAt, err)
	}
}

// A dead letter does not expire, and does not run past its deadline either.
func TestNobodyRetriesPastTheDeadline(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, status := range []outbox.Status{outbox.Pending, outbox.Dead} {
		id, _ := reach(t, db, status)
		exec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second' WHERE id = $1`, id)
		before := job(t, o, id)
		if err := o.Retry(t.Context(), id); !errors.Is(err, operator.ErrPastDeadline) {
			t.Errorf("retry of a job that is %s = %v, want ErrPastDeadline", status, err)
		}
		if err := o.ReplayEdited(t.Context(), id, []byte(`{}`)); status == outbox.Dead && !errors.Is(err, operator.ErrPastDeadline) {
			t.Errorf("replay with another payload = %v, want ErrPastDeadline", err)
		}
		if after := job(t, o, id); after.Status != status || after.Epoch != before.Epoch {
			t.Errorf("the refusal left %+v", after)
		}
	}
}

var hour = pgvalue.Interval(time.Hour)

func one(id outbox.ID) []pgtype.UUID { return []pgtype.UUID{pgvalue.UUID(id)} }

// An act on some statuses leaves a job alone that is in none of them, also when the job
// moves while its act waits for it.
func TestOnlyJobsInTheStatusesAreActedOn(t *testing.T) {
	t.Parallel()
	acts := map[string]struct {
		status outbox.Status
		do     func(*operator.Operator, outbox.ID) error
	}{
		"cancel":  {outbox.Running, func(o *operator.Operator, id outbox.ID) error { _, err := o.Cancel(t.Context(), id); return err }},
		"retry":   {outbox.Dead, func(o *operator.Operator, id outbox.ID) error { return o.Retry(t.Context(), id) }},
		"dismiss": {outbox.Dead, func(o *operator.Operator, id outbox.ID) error { return o.Dismiss(t.Context(), id) }},
		"replay": {outbox.Dead, func(o *operator.Operator, id outbox.ID) error {
			if err := o.WouldReplayEdited(t.Context(), id, []byte(`{}`)); err != nil {
				return err
			}
			return o.ReplayEdited(t.Context(), id, []byte(`{}`))
		}},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			id, _ := inStatus(t, o, db, act.status)
			before := job(t, o, id)
			err := act.do(o.Only(outbox.Pending, outbox.Failed), id)
			if conflict, ok := errors.AsType[*operator.StatusError](err); !ok || conflict.Status != act.status || conflict.Act != name {
				t.Errorf("%v, want that it is %s", err, act.status)
			}
			if diff := cmp.Diff(before, job(t, o, id)); diff != "" {
				t.Errorf("the job (-before +after):\n%s", diff)
			}
			for _, like := range []*operator.Operator{o.Only(outbox.Pending, act.status), o.Only(outbox.Pending).Only()} {
				again, _ := inStatus(t, o, db, act.status)
				if err := act.do(like, again); err != nil {
					t.Error(err)
				}
			}
		})
	}

	t.Run("claimed meanwhile", func(t *testing.T) {
		t.Parallel()
		o, db := newRig(t)
		id, _ := inStatus(t, o, db, outbox.Pending)
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		exec(t, tx, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, started_at = now(), lease_owner = 'w', lease_expires_at = now() + interval '1 minute' WHERE id = $1`, id)
		cancelled := make(chan error, 1)
		go func() { _, err := o.Only(outbox.Pending).Cancel(t.Context(), id); cancelled <- err }()
		pgtest.AwaitLocks(t, db, 1)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if conflict, ok := errors.AsType[*operator.StatusError](<-cancelled); !ok || conflict.Status != outbox.Running {
			t.Errorf("cancelled what was claimed meanwhile: %v", conflict)
		}
		if n := count(t, db, `outbox.jobs WHERE cancel_requested_at IS NOT NULL`); n != 0 {
			t.Error("the handler is asked to stop")
		}
	})
}
