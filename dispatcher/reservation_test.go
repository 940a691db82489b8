package dispatcher_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// deaf returns a dispatcher that nothing wakes, and a producer whose commits claim for it: every job that runs was
// claimed in this way.
func deaf(t *testing.T, db, producing *pgxpool.Pool, h handler) (*running, *outbox.Producer) {
	t.Helper()
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 1}}
	d := start(t, db, handle(h), config)
	p := outbox.NewProducer(producing, outbox.NotifyCoalesced)
	engine.InternalOf(p).SetReserve(d.Reserve)
	t.Cleanup(func() { _ = p.Flush(context.Background()) })
	reservable(t, d)
	return d, p
}

// reservable waits until a dispatcher has begun, and is idle.
func reservable(t *testing.T, d *running) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if r := d.Reserve("probe", engine.DefaultQueue, outbox.NewID()); r != nil {
			r.Failed(false)
			return
		}
		if time.Since(began) > patience {
			t.Fatal("the dispatcher takes no reservation")
		}
	}
}

func commitProbe(ctx context.Context, p *outbox.Producer, n int) (id outbox.ID, err error) {
	err = p.InTx(ctx, func(tx pgx.Tx) error {
		var err error
		id, err = outbox.Enqueue(ctx, tx, probe{N: n}, outbox.Options{})
		return err
	})
	return id, err
}

// A lone job is started by its own commit, alone or with a business row, however the statements are sent: one claim, no
// wake-up. Afterwards the worker is free for the next job.
func TestACommitClaimsItsJob(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			config := db.Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			producing, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(producing.Close)
			exec(t, db, `CREATE TABLE orders (id integer)`)
			type claim struct {
				id      outbox.ID
				epoch   int64
				attempt int
				worker  string
				n       int
				late    bool
			}
			ran := make(chan claim, 1)
			d, p := deaf(t, db, producing, func(_ context.Context, job *outbox.Job[probe]) error {
				ran <- claim{job.ID, job.Epoch, job.Attempt, job.Worker, job.Args.N, job.StartedAt.Before(job.RunAt)}
				return nil
			})
			for i := range 4 {
				var id outbox.ID
				err := p.InTx(t.Context(), func(tx pgx.Tx) (err error) {
					if i%2 == 1 {
						if _, err := tx.Exec(t.Context(), `INSERT INTO orders VALUES ($1)`, i); err != nil {
							return err
						}
					}
					id, err = outbox.Enqueue(t.Context(), tx, probe{N: i}, outbox.Options{Headers: map[string]string{"n": "1"}})
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if got, want := receive(t, ran, "the job to run"), (claim{id, 1, 1, d.Worker(), i, false}); got != want {
					t.Errorf("job %d ran as %+v, want %+v", i, got, want)
				}
				awaitSucceeded(t, db, i+1)
				wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=")
				reservable(t, d)
			}
			if n := d.metric(t, "job_claimed_total"); n != 4 {
				t.Errorf("%v jobs count as claimed, want 4", n)
			}
		})
	}
}

// A job that must not start at once is claimed in the ordinary way, and the dispatcher is woken for it.
func TestWhatACommitDoesNotClaim(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	held := make(chan struct{})
	d, p := deaf(t, db, db, func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 1 {
			<-held
		}
		return nil
	})
	var woken atomic.Int64
	engine.InternalOf(p).SetWake(func() { woken.Add(1) })
	one := func(opts outbox.Options) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(t.Context(), tx, probe{}, opts)
			return err
		}
	}
	after := func(sql string, opts outbox.Options) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return errors.Join(err, one(opts)(tx))
		}
	}
	exec(t, db, `CREATE ROLE `+roleOf(db)+` IN ROLE outbox_producer`)
	defer exec(t, db, `DROP ROLE `+roleOf(db))
	plain := outbox.Options{}
	// behind sends something before the commit, and then enqueues a plain job.
	behind := func(before ...func(pgx.Tx) error) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			for _, do := range append(before, one(plain)) {
				if err := do(tx); err != nil {
					return err
				}
			}
			return nil
		}
	}
	statement := func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), `SELECT $1::int`, 1); return err }
	many := func(tx pgx.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.Request{{Args: probe{}}})
		return err
	}
	for name, c := range map[string]struct {
		before, then string
		do           func(pgx.Tx) error
	}{
		"later":                    {do: one(outbox.Options{Delay: time.Hour})},
		"at a time":                {do: one(outbox.Options{RunAt: time.Now().Add(-time.Hour)})},
		"with a deadline":          {do: one(outbox.Options{Deadline: time.Now().Add(time.Hour)})},
		"with a key":               {do: one(outbox.Options{Key: outbox.KeyRules{Name: "k"}})},
		"held":                     {do: one(outbox.Options{Hold: true})},
		"streamed":                 {do: one(outbox.Options{Streamed: true})},
		"with a single attempt":    {do: one(outbox.Options{MaxAttempts: 1})},
		"of another tenant":        {do: one(outbox.Options{Tenant: outbox.NewID()})},
		"of another queue":         {do: one(outbox.Options{Queue: "other"})},
		"with an idempotency key":  {do: one(outbox.Options{IdempotencyKey: "i"})},
		"two":                      {do: func(tx pgx.Tx) error { return errors.Join(one(plain)(tx), one(plain)(tx)) }},
		"of a kind without worker": {do: func(tx pgx.Tx) error { _, err := outbox.Enqueue(t.Context(), tx, stranger{}, plain); return err }},
		"of a paused queue":        {before: `INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`, then: `DELETE FROM outbox.queues`, do: one(plain)},
		"of a limited queue":       {before: `INSERT INTO outbox.queues (queue, max_running) VALUES ('default', 5)`, then: `DELETE FROM outbox.queues`, do: one(plain)},
		"without waiting for disk": {do: after(`SET LOCAL synchronous_commit = off`, plain)},
		"in an older snapshot":     {do: after(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`, plain)},
		"in a serializable one":    {do: after(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`, plain)},
		"behind one sent before":   {do: behind(one(plain), statement)},
		"behind a tenant's":        {do: behind(one(outbox.Options{Tenant: outbox.NewID()}), statement)},
		"behind one with a key":    {do: behind(one(outbox.Options{Key: outbox.KeyRules{Name: "k"}}), statement)},
		"behind an idempotent one": {do: behind(one(outbox.Options{IdempotencyKey: "i"}))},
		"behind an EnqueueMany":    {do: behind(many)},
		"behind a hundred":         {do: behind(slices.Repeat([]func(pgx.Tx) error{one(plain)}, 100)...)},
		"by who may only enqueue":  {do: after(`SET LOCAL app.tenant_id = '`+outbox.RootTenant.String()+`'; SET LOCAL ROLE `+roleOf(db), plain)},
	} {
		if c.before != "" {
			exec(t, db, c.before)
		}
		stored, signal := 0, int64(0)
		for range 5 { // on a slow machine the dispatcher's own look may come between
			exec(t, db, `DELETE FROM outbox.jobs`)
			exec(t, db, `DELETE FROM outbox.idempotency_keys`)
			woken.Store(0)
			if err := p.InTx(t.Context(), c.do); err != nil {
				t.Errorf("a job %s: %v", name, err)
			}
			stored, signal = ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE epoch = 0`), woken.Load()
			if stored > 0 || signal != 1 {
				break
			}
			reservable(t, d)
		}
		if stored == 0 || signal != 1 {
			t.Errorf("a job %s: %d stored and not claimed, the dispatcher was woken %d times; want it stored, once", name, stored, signal)
		}
		if c.then != "" {
			exec(t, db, c.then)
		}
		reservable(t, d)
	}
	exec(t, db, `DELETE FROM outbox.jobs`)
	woken.Store(0)
	if _, err := commitProbe(t.Context(), p, 1); err != nil || woken.Load() != 0 {
		t.Errorf("a plain job: %v, woken %d times; want it claimed, and nobody woken", err, woken.Load())
	}
	if _, err := commitProbe(t.Context(), p, 1); err != nil || woken.Load() != 1 {
		t.Errorf("a job beside one that runs: %v, woken %d times; want once", err, woken.Load())
	}
	exec(t, db, `DELETE FROM outbox.jobs WHERE status = 'pending'`)
	close(held)
	awaitSucceeded(t, db, 1)
}

// A handler's transaction that stores follow-ups with its completion and then enqueues a plain job wakes the dispatcher
// for both: the claim of the second would not reveal the first.
func TestACommitWithFollowUpsWakes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, p := deaf(t, db, db, func(context.Context, *outbox.Job[probe]) error { return nil })
	var woken atomic.Int64
	engine.InternalOf(p).SetWake(func() { woken.Add(1) })
	wake := make(chan struct{}, 1)
	config := quiet(wake)
	config.Queues = map[string]dispatcher.QueueConfig{"parents": {Concurrency: 1}}
	committed := make(chan error, 1)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		err := p.InTx(ctx, func(tx pgx.Tx) error {
			_, err := job.Then(probe{}, outbox.Options{})
			if err == nil {
				err = job.Complete(ctx, tx)
			}
			if err == nil {
				_, err = outbox.Enqueue(ctx, tx, probe{}, outbox.Options{})
			}
			return err
		})
		committed <- err
		return err
	}), config)
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		woken.Store(0)
		enqueue(t, db, probe{}, outbox.Options{Queue: "parents", Tenant: tenant})
		wake <- struct{}{}
		if err := receive(t, committed, "the parent's commit"); err != nil || woken.Load() != 1 {
			t.Errorf("tenant %s: %v, woken %d times; want once", tenant, err, woken.Load())
		}
	}
}

// With a NOTIFY in each transaction, a commit that claims its job sends none: no other process has to look. A commit
// that should claim its job and may not sends one.
func TestWhatIsNotClaimedByItsCommitWakes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d, _ := deaf(t, db, db, func(context.Context, *outbox.Job[probe]) error { return nil })
	p := outbox.NewProducer(db, outbox.NotifyTransactional)
	engine.InternalOf(p).SetReserve(d.Reserve)
	engine.InternalOf(p).SetWake(func() {})
	hears, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hears.Hijack().Close(context.Background()) }()
	if _, err := hears.Exec(t.Context(), `LISTEN outbox_jobs`); err != nil {
		t.Fatal(err)
	}
	heard := func() int {
		exec(t, db, `NOTIFY outbox_jobs, 'end'`) // what was sent before comes before it
		for n := 0; ; n++ {
			signal, err := hears.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if signal.Payload == "end" {
				return n
			}
		}
	}
	if _, err := commitProbe(t.Context(), p, 1); err != nil {
		t.Fatal(err)
	}
	awaitSucceeded(t, db, 1)
	if n := heard(); n != 0 {
		t.Errorf("%d notifications of a job that its commit claimed, want none", n)
	}
	reservable(t, d)
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`)
	id, err := commitProbe(t.Context(), p, 2)
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	if n := heard(); n != 1 {
		t.Errorf("%d notifications of a job of a paused queue, want one", n)
	}
	exec(t, db, `DELETE FROM outbox.jobs`)
}

// roleOf returns a role of a test's own: roles belong to the whole server.
func roleOf(db *pgxpool.Pool) string {
	return pgx.Identifier{"only_enqueues_in_" + db.Config().ConnConfig.Database}.Sanitize()
}

// stranger is a job that nobody handles.
type stranger struct{}

func (stranger) Kind() string { return "stranger" }

// The claim is written, and then the transaction or the job itself is refused: there is neither a job nor an attempt.
func TestARefusedCommitStartsNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not urgent'; END $$`)
	exec(t, db, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.priority = -1) EXECUTE FUNCTION refuse()`)
	exec(t, db, `ALTER TABLE outbox.jobs ADD CONSTRAINT urgent CHECK (priority > -2)`)
	exec(t, db, `CREATE TABLE orders (id integer)`)
	ran := make(chan outbox.ID, 10)
	d, p := deaf(t, db, db, func(_ context.Context, job *outbox.Job[probe]) error {
		ran <- job.ID
		return nil
	})
	for _, row := range []bool{false, true} {
		for priority, refusal := range map[int]string{-1: "not urgent", -2: "enqueue probe: "} {
			err := p.InTx(t.Context(), func(tx pgx.Tx) error {
				if row {
					if _, err := tx.Exec(t.Context(), `INSERT INTO orders VALUES ($1)`, 1); err != nil {
						return err
					}
				}
				_, err := outbox.Enqueue(t.Context(), tx, probe{}, outbox.Options{Priority: priority})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Fatalf("commit: %v, want %q", err, refusal)
			}
			reservable(t, d)
		}
	}
	if n := ask[int](t, db, `SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders whose transaction was refused", n)
	}
	id, err := commitProbe(t.Context(), p, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := receive(t, ran, "the job to run"); got != id || len(ran) != 0 {
		t.Errorf("%s ran, and %d others; want %s only", got, len(ran), id)
	}
	awaitSucceeded(t, db, 1)
}

// The claim fails, for whatever reason, and even after its row was written: the transaction commits all the same, and
// nothing starts that is not ours.
func TestAFailedClaimLeavesTheTransactionAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$`)
	d, p := deaf(t, db, db, func(context.Context, *outbox.Job[probe]) error { return nil })
	for _, when := range []string{"BEFORE", "AFTER"} {
		exec(t, db, `CREATE TRIGGER refuse `+when+` INSERT OR UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.status = 'running') EXECUTE FUNCTION refuse()`)
		id, err := commitProbe(t.Context(), p, 0)
		if err != nil {
			t.Fatalf("%s: %v, want the job stored", when, err)
		}
		reservable(t, d)
		wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
		exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	}
	exec(t, db, `DELETE FROM outbox.jobs`)
}

// The transaction commits, and its connection breaks before the answer has arrived:
//
//	producer     [INSERT claimed, COMMIT]   error
//	database                  commit (epoch 1)
//	dispatcher                             give back (epoch 2)   claim (epoch 3)
//
// This process holds the lease, but does not know of the job.
func TestAJobWhoseCommitHasNoAnswerIsGivenBack(t *testing.T) {
	t.Parallel()
	t.Run("the connection breaks", func(t *testing.T) {
		t.Parallel()
		loss := answerLoss{of: "SELECT 1\x00"}
		testUnansweredCommit(t, loss.pool, "")
		if !loss.happened.Load() {
			t.Error("no answer was lost")
		}
	})
	t.Run("a pooler reports it", func(t *testing.T) {
		t.Parallel()
		testUnansweredCommit(t, crashedServerPool, pooledCrash.Code)
	})
}

// testUnansweredCommit commits a job through a pool whose commits get no answer, or one with the given SQLSTATE.
func testUnansweredCommit(t *testing.T, pool func(*testing.T, *pgxpool.Pool) *pgxpool.Pool, state string) {
	good := pgtest.New(t)
	ran := make(chan int64, 1)
	_, p := deaf(t, good, pool(t, good), func(_ context.Context, job *outbox.Job[probe]) error {
		ran <- job.Epoch
		return nil
	})
	if id, err := commitProbe(t.Context(), p, 0); err == nil || pgsession.State(err) != state {
		t.Fatalf("job %s: %v; want an error with SQLSTATE %q", id, err, state)
	}
	if epoch := receive(t, ran, "the job to run"); epoch != 3 {
		t.Errorf("the job runs with epoch %d, want 3", epoch)
	}
	awaitSucceeded(t, good, 1)
}

// pooledCrash is what PgBouncer says when it loses its connection to the server.
var pooledCrash = pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "server conn crashed?"}

// crashedServerPool returns a pool of connections, of which one breaks at the answer to the statement that stores a
// claimed job. The client receives pooledCrash in its place.
func crashedServerPool(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config, happened := db.Config(), new(atomic.Bool)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &crashedServer{conn, happened}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type crashedServer struct {
	net.Conn
	happened *atomic.Bool
}

func (c *crashedServer) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !bytes.Contains(b[:max(n, 0)], []byte("SELECT 1\x00")) || c.happened.Swap(true) {
		return n, err
	}
	_ = c.Close()
	answer, err := pooledCrash.Encode(nil)
	return copy(b, answer), err
}

// A dispatcher stops while a commit that claims for it is under way: it waits, and gives the job back.
func TestAStopWaitsForTheCommitThatClaims(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var ran atomic.Int64
	d, _ := deaf(t, db, db, func(context.Context, *outbox.Job[probe]) error { ran.Add(1); return nil })
	id := outbox.NewID()
	r := d.Reserve("probe", engine.DefaultQueue, id)
	if second := d.Reserve("probe", engine.DefaultQueue, outbox.NewID()); r == nil || second != nil {
		t.Fatalf("reservations: %v and %v, want one", r, second)
	}
	d.cancel()
	for began := time.Now(); d.Reserve("probe", engine.DefaultQueue, id) != nil; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("a dispatcher that stops takes reservations")
		}
	}
	tx := begin(t, db)
	storeClaimed(t, tx, id, r)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.done:
		t.Fatal("the dispatcher did not wait")
	case <-time.After(300 * time.Millisecond):
	}
	r.Committed()
	d.wait(t)
	if ran.Load() != 0 {
		wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=") // a worker was faster
		return
	}
	wantState(t, db, id, "pending attempt=0 epoch=2 lost=0 error=")
}

// storeClaimed does what a producer's commit sends.
func storeClaimed(t *testing.T, tx pgx.Tx, id outbox.ID, r engine.Reservation) {
	t.Helper()
	worker, ttl := r.Lease()
	rows, err := tx.Query(t.Context(), `SELECT `+sqlgen.ClaimedColumns+`, place FROM outbox.enqueue_claimed($1, 'default', 'probe', 0::smallint, 25, NULL, NULL, '{}', 'application/json', NULL, false, false, $2, $3)`, id, worker, ttl)
	if err != nil {
		t.Fatal(err)
	}
	r.Read(rows)
}

// A dispatcher that nothing else wakes learns of the jobs of the producer to which it is attached, including jobs that
// no commit can claim.
func TestAttachedProducersWakeTheirDispatcher(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ran := make(chan outbox.ID, 3)
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error { ran <- job.ID; return nil }), quiet(nil))
	p := outbox.NewProducer(db, outbox.NotifyCoalesced)
	t.Cleanup(func() { _ = p.Flush(context.Background()) })
	detach := d.Attach(p)
	for _, opts := range []outbox.Options{{}, {Tenant: outbox.NewID()}, {Key: outbox.KeyRules{Name: "k"}}} {
		var id outbox.ID
		if err := p.InTx(t.Context(), func(tx pgx.Tx) (err error) {
			id, err = outbox.Enqueue(t.Context(), tx, probe{}, opts)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, ran, "the job to run"); got != id {
			t.Errorf("job %s ran, want %s", got, id)
		}
	}
	if detach(); engine.InternalOf(p).Reserve("probe", engine.DefaultQueue, outbox.NewID()) != nil {
		t.Error("a detached producer claims for the dispatcher")
	}
}
