package await

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The waiter polls once an hour here: what a Wait returns, it was woken for.
func TestWaitIsWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	work(t, r.db, func(ctx context.Context, job *outbox.Job[double]) (doubled, error) {
		switch job.Args.N {
		case 1:
			return doubled{2}, nil
		case 2: // in a transaction of the handler's
			return doubled{}, pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
				return outbox.CompleteWith(ctx, tx, job, doubled{4})
			})
		case 3:
			return doubled{}, dispatcher.Discard(errBoom)
		default:
			return doubled{}, errBoom
		}
	})
	r.hears(t)
	for n, want := range map[int]struct {
		got    doubled
		status outbox.Status // "" for success
	}{
		1: {doubled{2}, ""}, 2: {doubled{4}, ""}, 3: {doubled{}, outbox.Failed}, 4: {doubled{}, outbox.Dead},
	} {
		ref := enqueue(t, r, r.db, n, outbox.Options{MaxAttempts: 2, Delay: 100 * time.Millisecond})
		answer := start(ref)
		a := receive(t, answer, "the end of a job")
		if a.got != want.got || (a.err == nil) != (want.status == "") {
			t.Errorf("Wait for job %d = %v, %v, want %v, %s", n, a.got, a.err, want.got, want.status)
		}
		if want.status == "" {
			continue
		}
		end, ok := errors.AsType[*JobError](a.err)
		if !ok || *end != (JobError{ID: ref.ID, Status: want.status, Code: "error", Message: "boom"}) {
			t.Errorf("Wait for job %d = %v, want a JobError: %s", n, a.err, want.status)
		}
	}
}

// settleAll closes every open job as its worker would, without telling anybody.
func settleAll(t *testing.T, r *rig) {
	t.Helper()
	exec(t, r.db, `UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w',
		lease_expires_at = now() + interval '1 hour', started_at = now()`)
	rows, _ := r.db.Query(t.Context(), `SELECT id, epoch FROM outbox.jobs`)
	var p sqlgen.SettleSucceededParams
	var id pgtype.UUID
	var epoch int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &epoch}, func() error {
		p.Ids, p.Epochs, p.Results = append(p.Ids, id), append(p.Epochs, epoch), append(p.Results, []byte(`{"N":7}`))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if settled, err := sqlgen.New(r.db).SettleSucceeded(t.Context(), p); err != nil || len(settled) != len(p.Ids) {
		t.Fatalf("settled %d of %d, %v", len(settled), len(p.Ids), err)
	}
}

func wantSeven(t *testing.T, a answered) {
	t.Helper()
	if a.err != nil || a.got != (doubled{7}) {
		t.Errorf("Wait = %v, %v, want 7", a.got, a.err)
	}
}

func TestAThousandWaitsCostOneQueryAWakeUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.hears(t)
	const n = 1000
	answers := make([]chan answered, n)
	for i := range answers {
		answers[i] = start(enqueue(t, r, r.db, i, outbox.Options{}))
	}
	r.seen(t, n)
	before := r.queries.n.Load()
	for wake := range int64(3) { // for nothing
		exec(t, r.db, `NOTIFY outbox_settled`)
		awaitThat(t, "the wake-up is answered", func() bool { return r.queries.n.Load() > before+wake })
	}
	settleAll(t, r)
	exec(t, r.db, `NOTIFY outbox_settled`)
	for _, c := range answers {
		wantSeven(t, receive(t, c, "the end of a job"))
	}
	if got := r.queries.n.Load() - before; got < 4 || got > 8 { // a machine under load may lose hearing meanwhile
		t.Errorf("queries for four wake-ups = %d, want one for each", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waits) != 0 || len(r.fresh) != 0 {
		t.Errorf("jobs still watched = %d, %d of them new, want none", len(r.waits), len(r.fresh))
	}
}

// Anybody may send notifications. However many, queries keep their distance.
func TestAStormOfForgedWakeUpsIsCoalesced(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.hears(t)
	answer := start(enqueue(t, r, r.db, 1, outbox.Options{}))
	r.seen(t, 1)
	began, before := time.Now(), r.queries.n.Load()
	for range 1000 {
		exec(t, r.db, `NOTIFY outbox_settled`)
	}
	got, limit := r.queries.n.Load()-before, int64(time.Since(began)/coalesce)+2
	if got > limit {
		t.Errorf("queries = %d, want at most one in %s, %d", got, coalesce, limit)
	}
	settleAll(t, r)
	exec(t, r.db, `NOTIFY outbox_settled`)
	wantSeven(t, receive(t, answer, "the end of the job"))
}

func TestWhatNobodyAnnouncesIsPolledFor(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Waiter, *Config){
		"hearing": func(w *Waiter, _ *Config) { w.poll = 20 * time.Millisecond },
		"deaf":    func(_ *Waiter, c *Config) { c.ListenURL = "postgres://nobody@127.0.0.1:1/none" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, change)
			if name == "hearing" {
				r.hears(t)
			}
			answer := start(enqueue(t, r, r.db, 1, outbox.Options{}))
			r.seen(t, 1)
			settleAll(t, r)
			wantSeven(t, receive(t, answer, "the end of the job"))
			if name == "deaf" && r.listener.Listening() {
				t.Error("the listener hears: the test proves nothing")
			}
		})
	}
}

// Both connections are cut, and the job ends unheard. Listening again is a wake-up.
func TestAWaitOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.hears(t)
	answer := start(enqueue(t, r, r.db, 1, outbox.Options{}))
	r.seen(t, 1)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // after a commit it says so
	exec(t, tx, `LOCK outbox.jobs`)         // so that no query sees the end before the connections are cut
	cut := ask[int](t, tx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	if cut < 2 {
		t.Errorf("connections cut = %d, want the listener's and the one for queries", cut)
	}
	exec(t, tx, `WITH gone AS (DELETE FROM outbox.jobs RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, result)
		SELECT id, tenant_id, run_at, created_at, 1, 'succeeded', 'running', 1, max_attempts, 0, priority, queue, kind, payload, content_type, '{"N":7}' FROM gone`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantSeven(t, receive(t, answer, "the end of the job"))
}

func TestWaitBeforeTheCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(w *Waiter, _ *Config) { w.poll = 20 * time.Millisecond })
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // after a commit it says so
	answer := start(enqueue(t, r, tx, 1, outbox.Options{}))
	before := r.queries.n.Load()
	awaitThat(t, "the job was looked for in vain", func() bool { return r.queries.n.Load() > before+3 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.seen(t, 1)
	settleAll(t, r)
	wantSeven(t, receive(t, answer, "the end of the job"))
}

func TestAReferenceWithoutAWaiterIsAnError(t *testing.T) {
	t.Parallel()
	ref := RefTo[doubled](nil, outbox.NewID())
	_, waited := ref.Wait(t.Context())
	if _, looked := ref.Result(t.Context()); waited == nil || looked == nil {
		t.Errorf("Wait = %v, Result = %v; want errors", waited, looked)
	}
}

func TestAJobThatIsNowhereIsNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(w *Waiter, _ *Config) { w.poll, w.missing = 20*time.Millisecond, 200*time.Millisecond })
	began := time.Now()
	a := receive(t, start(RefTo[doubled](r.Waiter, outbox.NewID())), "an answer")
	if !errors.Is(a.err, ErrNotFound) || time.Since(began) < 200*time.Millisecond {
		t.Errorf("Wait = %v after %s, want %v after 200 ms", a.err, time.Since(began), ErrNotFound)
	}

	// One that was there and is gone needs no patience.
	r.mu.Lock()
	r.missing = time.Hour
	r.mu.Unlock()
	answer := start(enqueue(t, r, r.db, 1, outbox.Options{}))
	r.seen(t, 1)
	exec(t, r.db, `DELETE FROM outbox.jobs`)
	if a := receive(t, answer, "an answer"); !errors.Is(a.err, ErrNotFound) {
		t.Errorf("Wait for a job that is gone = %v, want %v", a.err, ErrNotFound)
	}

	// Tables that are not there may be about to be made.
	r.mu.Lock()
	r.missing = 200 * time.Millisecond
	r.mu.Unlock()
	exec(t, r.db, `ALTER SCHEMA outbox RENAME TO moved`)
	began = time.Now()
	a = receive(t, start(RefTo[doubled](r.Waiter, outbox.NewID())), "an answer")
	if pgsession.State(a.err) != pgsession.UndefinedTable || time.Since(began) < 200*time.Millisecond {
		t.Errorf("Wait without the tables = %v after %s, want SQLSTATE %s after 200 ms", a.err, time.Since(began), pgsession.UndefinedTable)
	}
}

func TestARepeatWaitsForTheFirstJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.hears(t)
	once := outbox.Options{IdempotencyKey: "once"}
	first := enqueue(t, r, r.db, 1, once)
	again := enqueue(t, r, r.db, 1, once)
	if first.ID != again.ID {
		t.Fatalf("the repeat refers to job %s, want %s", again.ID, first.ID)
	}
	answers := []chan answered{start(first), start(again)}
	r.seen(t, 2)
	settleAll(t, r)
	exec(t, r.db, `NOTIFY outbox_settled`)
	for _, c := range answers {
		wantSeven(t, receive(t, c, "the end of the job"))
	}
}

func TestAWaitEndsWithItsContextAndWithTheWaiter(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ref := enqueue(t, r, r.db, 1, outbox.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := ref.Wait(ctx)
		given <- err
	}()
	r.seen(t, 1)
	cancel(errBoom)
	if err := receive(t, given, "the wait to be given up"); !errors.Is(err, errBoom) {
		t.Errorf("Wait = %v, want the cause of its context", err)
	}
	r.mu.Lock()
	if len(r.waits) != 0 {
		t.Errorf("jobs still watched = %d, want none", len(r.waits))
	}
	r.mu.Unlock()

	answer := start(ref)
	r.seen(t, 1)
	r.stop()
	if a := receive(t, answer, "the waiter to stop"); !errors.Is(a.err, ErrStopped) {
		t.Errorf("Wait = %v, want %v", a.err, ErrStopped)
	}
	if _, err := ref.Wait(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("Wait after the stop = %v, want %v", err, ErrStopped)
	}
}

// A wait that was given up before anybody ran leaves nothing behind.
func TestAWaitBeforeTheWaiterRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	w, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := RefTo[doubled](w, outbox.NewID()).Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v, want it given up", err)
	}
	if len(w.waits) != 0 || len(w.fresh) != 0 {
		t.Errorf("jobs still watched = %d, %d of them new, want none", len(w.waits), len(w.fresh))
	}
	answer := start(RefTo[doubled](w, outbox.NewID()))
	begun := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.waits) == 1
	}
	awaitThat(t, "the wait has begun", begun)
	// A missing right ends it at once, a missing table does not.
	for _, code := range []string{pgsession.UndefinedTable, pgsession.InsufficientPrivilege} {
		w.refuse(w.ids(true), &pgconn.PgError{Code: code}, 0)
		if begun() != (code == pgsession.UndefinedTable) {
			t.Errorf("it waits after %s: %t", code, begun())
		}
	}
	if a := receive(t, answer, "an answer"); pgsession.State(a.err) != pgsession.InsufficientPrivilege {
		t.Errorf("Wait = %v, want the refusal", a.err)
	}
	answer = start(RefTo[doubled](w, outbox.NewID()))
	awaitThat(t, "the next wait has begun", begun)
	w.missing = 0
	runs, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(runs) }()
	if a := receive(t, answer, "an answer"); !errors.Is(a.err, ErrNotFound) {
		t.Errorf("Wait = %v, want %v", a.err, ErrNotFound)
	}
	stop()
	if err := receive(t, done, "Run to return"); err != nil {
		t.Error(err)
	}
	if w.Run(t.Context()) == nil {
		t.Error("Run ran twice")
	}
}

// The history has a partition for each day: for a job that is open it is not asked.
func TestWaitingForOpenJobsDoesNotReadTheHistory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var ids []pgtype.UUID
	for n := range 20 {
		id, err := outbox.Enqueue(t.Context(), db, double{N: n}, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, pgvalue.UUID(id))
	}
	pool, err := openPool(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	plan := func() string {
		rows, _ := pool.Query(t.Context(), `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) `+sqlgen.FindEnded, ids)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	read := regexp.MustCompile(`on history_\d+ .*\(actual rows`)
	if p := plan(); read.MatchString(p) || strings.Contains(p, "Seq Scan on jobs") || !strings.Contains(p, "jobs_pkey") {
		t.Errorf("the plan for open jobs reads the history, or a whole table:\n%s", p)
	}
	ids[0] = pgvalue.UUID(outbox.NewID())
	if p := plan(); !read.MatchString(p) || strings.Contains(p, "Seq Scan on history") {
		t.Errorf("the plan for a job that is not open does not read the history by its index:\n%s", p)
	}
}

func TestStatusAndResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ref := enqueue(t, r, r.db, 1, outbox.Options{})
	if status, err := ref.Status(t.Context()); status != outbox.Pending || err != nil {
		t.Errorf("Status = %s, %v, want pending", status, err)
	}
	if _, err := ref.Result(t.Context()); !errors.Is(err, ErrOpen) {
		t.Errorf("Result of an open job = %v, want %v", err, ErrOpen)
	}
	settleAll(t, r)
	if status, err := ref.Status(t.Context()); status != outbox.Succeeded || err != nil {
		t.Errorf("Status = %s, %v, want succeeded", status, err)
	}
	if got, err := ref.Result(t.Context()); got != (doubled{7}) || err != nil {
		t.Errorf("Result = %v, %v, want 7", got, err)
	}
	if _, err := RefTo[string](r.Waiter, ref.ID).Result(t.Context()); err == nil {
		t.Error("a result was read as what it is not")
	}
	exec(t, r.db, `UPDATE outbox.history SET result = NULL`)
	if _, err := ref.Result(t.Context()); !errors.Is(err, ErrNoResult) {
		t.Errorf("Result of a job that left none = %v, want %v", err, ErrNoResult)
	}
	if _, err := RefTo[struct{}](r.Waiter, ref.ID).Result(t.Context()); err != nil {
		t.Errorf("Result of a job that has none = %v, want nothing", err)
	}
	nowhere := RefTo[doubled](r.Waiter, outbox.NewID())
	if _, err := nowhere.Status(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Status of no job = %v, want %v", err, ErrNotFound)
	}
	if _, err := nowhere.Result(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Result of no job = %v, want %v", err, ErrNotFound)
	}
}

func TestWatchedMarksJobsThatOthersEnqueue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := outbox.EnqueueMany(t.Context(), db, []outbox.Request{
		{Args: double{N: 1}, Options: Watched(outbox.Options{Queue: "q"})},
		{Args: double{N: 2}, Options: outbox.Options{Queue: "q"}},
	}); err != nil {
		t.Fatal(err)
	}
	if watched := ask[string](t, db, `SELECT string_agg(payload->>'N', ' ') FROM (SELECT convert_from(payload, 'UTF8')::jsonb AS payload FROM outbox.jobs WHERE watched AND queue = 'q') AS j`); watched != "1" {
		t.Errorf("watched: %q, want the first", watched)
	}
}

func TestOnlyJobsThatAreWaitedForAreAnnounced(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	work(t, r.db, func(_ context.Context, job *outbox.Job[double]) (doubled, error) { return doubled{7}, nil })
	conn, err := r.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec(t, conn, `LISTEN outbox_settled`)
	for n := range 3 { // one after the other, each settled
		id, err := outbox.Enqueue(t.Context(), r.db, double{N: n}, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		awaitThat(t, "the job is done", func() bool {
			return ask[bool](t, r.db, `SELECT EXISTS (SELECT FROM outbox.history WHERE id = $1)`, id)
		})
	}
	exec(t, r.db, `NOTIFY outbox_settled, 'the test'`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if n, err := conn.Conn().WaitForNotification(ctx); err != nil || n.Payload != "the test" {
		t.Errorf("the first notification is %+v, %v, want the test's own", n, err)
	}
	exec(t, conn, `UNLISTEN *`)
}
