package operator_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Acts in a caller's transaction exist, with their rows in the audit, exactly if it commits; what is
// refused leaves it usable. Of root and of a tenant, with a key and without.
func TestActsJoinACallersTransaction(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	o = o.As(operator.Actor{Name: "ada"})
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	run(`CREATE TABLE orders (id integer)`)
	state := func() (s string) {
		t.Helper()
		err := db.QueryRow(t.Context(), `
			SELECT concat_ws(' ', (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox.audit), (SELECT count(*) FROM outbox.jobs WHERE status = 'pending'),
			    (SELECT count(*) FROM outbox.jobs WHERE status = 'dead'), (SELECT count(*) FROM outbox.history WHERE status = 'cancelled'),
			    (SELECT count(*) FROM outbox.queues WHERE paused_at IS NOT NULL), (SELECT count(*) FROM outbox.schedules WHERE paused_at IS NOT NULL))`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var dead, waiting []outbox.ID
	for _, tenant := range []outbox.ID{{}, outbox.NewID()} {
		for _, key := range []string{"", "k"} {
			dead = append(dead, enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}}))
			waiting = append(waiting, enqueue(t, db, "mail", outbox.Options{Tenant: tenant, Queue: "other", Key: outbox.KeyRules{Name: key}}))
		}
	}
	for id, epoch := range claim(t, db, "default") {
		if !settle(t, db, id, epoch, outbox.Dead) {
			t.Fatalf("job %s could not be settled as dead", id)
		}
	}
	run(`INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('daily', '1 day', 'mail', '{}', now() + interval '1 day')`)
	before := state()

	acts := func(ctx context.Context, tx pgx.Tx) {
		t.Helper()
		in := o.WithTx(tx)
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES (1)`); err != nil {
			t.Fatal(err)
		}
		for i := range dead {
			if err := in.Retry(ctx, dead[i]); err != nil {
				t.Errorf("retry: %v", err)
			}
			if _, err := in.Cancel(ctx, waiting[i]); err != nil {
				t.Errorf("cancel: %v", err)
			}
		}
		if err := in.Retry(ctx, outbox.NewID()); !errors.Is(err, operator.ErrNotFound) {
			t.Errorf("retry of nothing: %v, want that it is not found", err)
		}
		if err := in.PauseSchedule(ctx, outbox.RootTenant, "none"); !errors.Is(err, operator.ErrScheduleNotFound) {
			t.Errorf("pause no schedule: %v, want that it is not found", err)
		}
		if err := errors.Join(in.Pause(ctx, "other"), in.PauseSchedule(ctx, outbox.RootTenant, "daily")); err != nil {
			t.Errorf("pause: %v", err)
		}
		job, err := in.Job(ctx, dead[0])
		if err != nil || job.Status != outbox.Pending {
			t.Errorf("inside the transaction the job is %s, %v; want pending", job.Status, err)
		}
		if _, err := in.StepOperation(ctx); err == nil {
			t.Error("an operation is stepped in a caller's transaction")
		}
	}
	for _, commit := range []bool{false, true} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		acts(t.Context(), tx)
		if got := state(); got != before {
			t.Errorf("before the end of the transaction others see %s, want %s", got, before)
		}
		end, want := tx.Rollback, before
		if commit {
			end, want = tx.Commit, "1 10 4 0 4 1 1"
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := state(); got != want {
			t.Errorf("after the end (commit: %t) got %s, want %s", commit, got, want)
		}
	}
}

// Questions set timeouts and plans for themselves; the caller's statements keep theirs.
func TestQuestionsLeaveACallersTransactionAsItWas(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := enqueue(t, db, "mail", outbox.Options{})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	settings := func() (s string) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `
			SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('enable_seqscan'), current_setting('jit'),
				'of', nullif(current_setting('app.tenant_id', true), ''))`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if _, err := tx.Exec(t.Context(), `SET LOCAL statement_timeout = '17s'; SET LOCAL jit = on`); err != nil {
		t.Fatal(err)
	}
	before := settings()
	in := o.WithTx(tx)
	_, overview := in.Overview(t.Context())
	_, explained := in.Explain(t.Context(), id)
	_, groups := in.DeadLetterGroups(t.Context(), operator.DeadLetterFilter{}, 10)
	_, page := in.Page(operator.WithTenant(t.Context(), outbox.NewID()), operator.Filter{Kind: "mail"})
	if err := errors.Join(overview, explained, groups, page); err != nil {
		t.Error(err)
	}
	if got := settings(); got != before {
		t.Errorf("after questions the settings are %s, want %s", got, before)
	}
}

// The session of a caller's transaction decides which rows a list has, also after the list has counted those of all
// tenants to bound what it reads, and whatever tenant the context has.
func TestAListInACallersTransactionIsOfItsTenant(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	own, foreign := outbox.NewID(), outbox.NewID()
	storeForeign(t, db, own, foreign)
	tx, err := pgtest.Login(t, db, "outbox_api").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT set_config('app.tenant_id', $1, true)`, own.String()); err != nil {
		t.Fatal(err)
	}
	in := operator.New(nil).WithTx(tx)
	for tenant, want := range map[outbox.ID][2]int{own: {30, 10}, foreign: {}} {
		ctx := operator.WithTenant(t.Context(), tenant)
		var listed [2]int
		for job, err := range in.All(ctx, operator.Filter{}) {
			if listed[0]++; err != nil || job.Tenant != own {
				t.Fatalf("listed %+v, %v", job, err)
			}
		}
		letters, err := in.DeadLetters(ctx, operator.DeadLetterFilter{}, outbox.ID{}, 0)
		if listed[1] = len(letters); err != nil || listed != want {
			t.Errorf("in a context of %s: %d jobs and dead letters, %v; want %d", tenant, listed, err, want)
		}
		var bound string
		if err := tx.QueryRow(t.Context(), `SELECT current_setting('app.tenant_id')`).Scan(&bound); err != nil || bound != own.String() {
			t.Errorf("afterwards the transaction is tied to %s, %v", bound, err)
		}
	}
}
