package dispatcher_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A job may take any time: its lease is extended, and is live throughout.
func TestLongJobKeepsItsLease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	release := make(chan struct{})
	causes := make(chan error, 1)
	d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		causes <- context.Cause(ctx)
		return nil
	}), config)
	await(t, db, "the job runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
	lapses := 0
	awaitThat(t, "two lease times pass", func() bool {
		if ask[bool](t, db, `SELECT lease_expires_at < clock_timestamp() FROM outbox.jobs`) {
			lapses++
		}
		return ask[bool](t, db, `SELECT clock_timestamp() > started_at + interval '11 s' FROM outbox.jobs`)
	})
	if lapses > 0 {
		t.Errorf("the lease had lapsed when it was looked at, %d times", lapses)
	}
	wantState(t, db, id, "running attempt=1 epoch=1 lost=0 error=")
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID.Valid {
		t.Errorf("a reaper takes the job away: %+v, %v", lapsed, err)
	}
	close(release)
	if cause := receive(t, causes, "the end of the job"); cause != nil {
		t.Errorf("the handler's context ended with %v", cause)
	}
	awaitSucceeded(t, db, 1)
	wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=")
	if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
		t.Errorf("leases lost = %v", n)
	}
}

// A handler may continue after its own transaction has completed the job: there is no lease left to lose.
func TestAHandlerGoesOnAfterItsCommittedComplete(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	causes := make(chan error, 4)
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		enqueue(t, db, probe{}, outbox.Options{Tenant: tenant})
		enqueue(t, db, probe{}, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}})
	}
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.Complete(ctx, tx) }); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(3 * config.LeaseTTL / 2): // what comes after a commit
		}
		causes <- context.Cause(ctx)
		return nil
	}), config)
	for range cap(causes) {
		if cause := receive(t, causes, "a handler's end"); cause != nil {
			t.Errorf("a handler's context ended with %v", cause)
		}
	}
	d.stop(t)
	if lost, done := d.metric(t, "outbox_dispatcher_leases_lost_total"), d.metric(t, "job_completed_total"); lost != 0 || done != 4 {
		t.Errorf("leases lost = %v, jobs completed = %v; want 0 and 4", lost, done)
	}
}

// A handler has locked its row with Guard or Complete and has not committed yet: its lease cannot be extended in the
// row then, but all other leases are.
func TestExtensionDoesNotWaitForLockedRows(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(context.Context, *outbox.Job[probe], pgx.Tx) error{
		"Guard":    func(ctx context.Context, job *outbox.Job[probe], tx pgx.Tx) error { return job.Guard(ctx, tx) },
		"Complete": func(ctx context.Context, job *outbox.Job[probe], tx pgx.Tx) error { return job.Complete(ctx, tx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ids := enqueueProbes(t, db, 6, outbox.Options{})
			config := quiet(nil)
			config.LeaseTTL = 4 * time.Second
			locked, commit, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
			d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				if job.Args.N == 0 {
					return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
						if err := lock(ctx, job, tx); err != nil {
							return err
						}
						close(locked)
						<-commit
						return nil
					})
				}
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					t.Errorf("job %d: its context ended with %v", job.Args.N, context.Cause(ctx))
					return ctx.Err()
				}
			}), config)
			receive(t, locked, "the row to be locked")
			await(t, db, "the other leases are extended", `
				SELECT count(*) = 5 FROM outbox.jobs WHERE status = 'running' AND lease_expires_at > started_at + interval '4.5 s'`)
			if ask[bool](t, db, `SELECT lease_expires_at > started_at + interval '4.5 s' FROM outbox.jobs WHERE id = $1`, ids[0]) {
				t.Error("the locked row was extended: the test proves nothing")
			}
			close(commit)
			close(release)
			awaitSucceeded(t, db, 6)
			for _, id := range ids {
				wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=")
			}
			d.stop(t)
			if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
				t.Errorf("leases lost = %v", n)
			}
		})
	}
}

// A handler keeps the only connection of the pool while its lease must be extended.
func TestHandlersThatUseUpThePoolKeepTheirLeases(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	small := db.Config()
	small.MaxConns = 1
	user, err := pgxpool.NewWithConfig(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(user.Close)
	id := enqueue(t, db, probe{}, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	ended, release := make(chan error, 1), make(chan struct{})
	start(t, user, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		conn, err := user.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		select {
		case <-ctx.Done():
			ended <- context.Cause(ctx)
		case <-release:
			ended <- nil
		}
		return nil
	}), config)
	awaitThat(t, "the lease is extended", func() bool {
		return len(ended) > 0 || ask[bool](t, db, `SELECT coalesce(bool_or(lease_expires_at > started_at + interval '5.5 s'), false) FROM outbox.jobs`)
	})
	close(release)
	if cause := receive(t, ended, "the handler"); cause != nil {
		t.Errorf("its context ended with %v", cause)
	}
	awaitSucceeded(t, db, 1)
	wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=")
}

// takeAway does what a reaper or an operator does to a running job.
const takeAway = `
	UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, run_at = now() + interval '1 hour'
	WHERE id = $1`

func TestHandlerLearnsThatItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 2, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = 24 * time.Second // noticed at the extension, after 8 s; not because it lapses, after 23 s
	causes := make(chan error, 1)
	release := make(chan struct{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 1 {
			<-release
			return nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return errBoom
	}), config)
	await(t, db, "both run", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running'`)
	exec(t, db, takeAway, ids[0])
	before := row(t, db, ids[0])
	since := time.Now()
	if cause := receive(t, causes, "the handler's context to end"); !errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("cause = %v, want ErrLeaseLost", cause)
	}
	if took := time.Since(since); took > 20*time.Second {
		t.Errorf("noticed after %s: by the lapse of the lease, not by its extension", took)
	}
	close(release)
	await(t, db, "the other one succeeds", `SELECT count(*) = 1 FROM outbox.history`)
	awaitThat(t, "the outcome is refused", func() bool { return d.metric(t, "outbox_dispatcher_leases_lost_total") == 1 })
	if after := row(t, db, ids[0]); after != before {
		t.Errorf("the job that was taken away changed\nfrom %s\nto   %s", before, after)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 0 {
		t.Errorf("recorded attempts = %d: the error of a lease that was lost is nobody's", n)
	}
}

// The network swallows everything: a worker stops its handlers about when the database lets others take over, not only
// when a statement times out.
func TestHandlerStopsWhenItsLeaseCannotBeExtended(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	var hole blackHole
	bad := hole.pool(t, good)
	id := enqueue(t, good, probe{}, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = 2 * time.Second
	causes := make(chan error, 1)
	d := start(t, bad, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), config)
	await(t, good, "the job runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
	hole.open.Store(true)
	if cause := receive(t, causes, "the handler's context to end"); !errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("cause = %v, want ErrLeaseLost", cause)
	}
	if late := ask[float64](t, good, `SELECT extract(epoch FROM clock_timestamp() - lease_expires_at)::float8 FROM outbox.jobs`); late > 1.5 {
		t.Errorf("the handler went on for %.1f s after the lease had lapsed", late)
	}
	awaitThat(t, "a reaper takes the job away", func() bool {
		lapsed, err := expireLapsed(t.Context(), good)
		return err != nil || lapsed[0].ID.Valid
	})
	exec(t, good, `UPDATE outbox.jobs SET run_at = now() + interval '1 hour'`)
	hole.open.Store(false)
	d.stop(t) // which waits for the late outcome
	wantState(t, good, id, "retrying attempt=1 epoch=2 lost=1 error=lease_lost")
}

// blackHole is a network that can silently swallow what is sent.
type blackHole struct{ open atomic.Bool }

func (h *blackHole) pool(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &holeConn{conn, h}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type holeConn struct {
	net.Conn
	hole *blackHole
}

func (c *holeConn) Write(b []byte) (int, error) {
	if c.hole.open.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// The same process may well claim the job of a handler that lost its lease, while that handler still runs. Only the old
// attempt is stopped.
func TestZombieBesideItsReplacement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	wake := make(chan struct{}, 1)
	config := quiet(wake)
	config.LeaseTTL = 3 * time.Second
	causes, replaced, release := make(chan error, 2), make(chan struct{}), make(chan struct{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Epoch == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return errBoom
		}
		close(replaced)
		select {
		case <-ctx.Done():
			t.Errorf("the replacement's context ended with %v", context.Cause(ctx))
			return ctx.Err()
		case <-release:
			return nil
		}
	}), config)
	await(t, db, "the job runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
	exec(t, db, takeAway, id)
	exec(t, db, `UPDATE outbox.jobs SET run_at = now() WHERE id = $1`, id)
	wake <- struct{}{}
	receive(t, replaced, "the replacement")
	if cause := receive(t, causes, "the zombie to be told"); !errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("cause = %v, want ErrLeaseLost", cause)
	}
	await(t, db, "the replacement's lease is extended", `SELECT lease_expires_at > started_at + interval '3.5 s' FROM outbox.jobs`)
	close(release)
	awaitSucceeded(t, db, 1)
	wantState(t, db, id, "succeeded attempt=2 epoch=3 lost=0 error=")
	d.stop(t)
	if n := d.metric(t, "job_completed_total"); n != 1 {
		t.Errorf("jobs completed = %v, want 1", n)
	}
}

// However long a job may take, its lease is extended: an INSERT may store a timeout longer than any time.Duration.
func TestAnEndlessTimeoutKeepsItsLease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := fourProbes(t, db)
	exec(t, db, `UPDATE outbox.jobs SET timeout = '300000 years'`)
	config := quiet(nil)
	config.LeaseTTL = 2 * time.Second
	d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		select {
		case <-time.After(2 * config.LeaseTTL):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}), config)
	await(t, db, "none is running", `SELECT count(*) = 0 FROM outbox.jobs WHERE status = 'running' OR attempt = 0`)
	d.stop(t)
	for _, id := range ids {
		wantState(t, db, id, "succeeded attempt=1 epoch=1 lost=0 error=")
	}
}

// A user's trigger fails for one job while it runs, with an error that the server otherwise reports for all: the other
// jobs keep their leases.
func TestATriggerThatFailsCostsOneLease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO app.audit VALUES (NEW.id); RETURN NULL; END $$`)
	exec(t, db, `CREATE TRIGGER audit AFTER UPDATE ON outbox.jobs FOR EACH ROW WHEN (OLD.status = 'running' AND NEW.payload = '{"n":1}') EXECUTE FUNCTION audit()`)
	fourProbes(t, db)
	enqueue(t, db, probe{1}, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = 2 * time.Second
	gate, lost := make(chan struct{}), make(chan int, 5)
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		select {
		case <-gate:
		case <-ctx.Done():
			lost <- job.Args.N
		}
		return nil
	}), config)
	if n := receive(t, lost, "a lease to be lost"); n != 1 {
		t.Error("the lease of another job is lost")
	}
	time.Sleep(config.LeaseTTL)
	close(gate)
	await(t, db, "all succeed", `SELECT count(*) = 5 FROM outbox.history WHERE status = 'succeeded' AND attempt = 1`)
	if len(lost) > 0 {
		t.Error("the lease of another job is lost later")
	}
	d.stop(t)
}
