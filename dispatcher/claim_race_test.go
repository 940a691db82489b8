package dispatcher_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A claim passes by rows of a claim that is not committed yet, and a row that an operator has locked: it gets the next
// jobs, and does not wait.
func TestAClaimDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 6, outbox.Options{})
	first, second := begin(t, db), begin(t, db)
	exec(t, second, `SET LOCAL lock_timeout = '2s'`)
	exec(t, first, `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, ids[0])
	if rows, err := sqlgen.New(first).ClaimJobs(t.Context(), claimParams("first", 2)); err != nil || len(rows) != 2 {
		t.Fatalf("the first claims %d jobs, %v; want 2", len(rows), err)
	}
	rows, err := sqlgen.New(second).ClaimJobs(t.Context(), claimParams("second", 6))
	if err != nil || len(rows) != 4 {
		t.Fatalf("the second claims %d jobs, %v; want the 4 that are left", len(rows), err)
	}
	for _, tx := range []interface{ Commit(context.Context) error }{first, second} {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running' AND epoch = 1`); n != 6 {
		t.Errorf("jobs that were claimed once = %d, want 6", n)
	}
}

// A transaction keeps a job's row locked while the job becomes due, as that of an operator who cancels it, and is
// rolled back. Nobody is notified, and the poll is an hour away:
//
//	transaction   lock J                                    roll back
//	dispatcher             J is due: the claim passes by J             claim J
func TestAJobWhoseRowWasLockedWhenItBecameDueIsStarted(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, key := range []string{"", "k"} {
			t.Run(fmt.Sprintf("root %t, key %q", tenant == outbox.RootTenant, key), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				opts := outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}, Delay: time.Second}
				id := enqueue(t, db, probe{}, opts)
				exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload) VALUES (outbox.uuid_v7(), $1, 'foreign', '1')`, tenant)
				tx := begin(t, db)
				exec(t, tx, `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, id)
				claims := &counter{text: "name: Claim"}
				start(t, traced(t, db, claims), handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
				await(t, db, "it is due", `SELECT run_at < clock_timestamp() FROM outbox.jobs WHERE id = $1`, id)
				passed := claims.n.Load() + 2
				awaitThat(t, "claims have passed by it", func() bool { return claims.n.Load() >= passed })
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				await(t, db, "it succeeds", `SELECT count(*) = 1 FROM outbox.history WHERE status = 'succeeded'`)
			})
		}
	}
}

// A claim commits, and its connection breaks before the answer has arrived:
//
//	dispatcher   claim                    error   give back (epoch 2)   claim (epoch 3)
//	database           commit (epoch 1)
//
// Nothing else knows of the lease, the poll is far away, and there is no reaper.
func TestJobsOfALostAnswerAreGivenBack(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	var loss answerLoss
	bad := loss.pool(t, good)
	id := enqueue(t, good, probe{}, outbox.Options{})
	ran := make(chan int64, 1)
	start(t, bad, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		ran <- job.Epoch
		return nil
	}), quiet(nil))
	if epoch := receive(t, ran, "the job to run"); epoch != 3 || !loss.happened.Load() {
		t.Errorf("the job runs with epoch %d, an answer was lost: %v; want 3, true", epoch, loss.happened.Load())
	}
	awaitSucceeded(t, good, 1)
	wantState(t, good, id, "succeeded attempt=1 epoch=3 lost=0 error=")
}

// The stop comes while the answer is lost: no process claims any more, and the job would wait for its lease to lapse,
// which would count as a worker's death.
func TestAStopGivesBackTheJobsOfALostAnswer(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	stop := make(chan func(), 1)
	loss := answerLoss{also: func() { (<-stop)() }}
	wake := make(chan struct{}, 1)
	d := start(t, loss.pool(t, good), handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(wake))
	stop <- d.cancel
	id := enqueue(t, good, probe{}, outbox.Options{})
	wake <- struct{}{}
	d.wait(t)
	if !loss.happened.Load() {
		t.Fatal("no answer was lost")
	}
	wantState(t, good, id, "pending attempt=0 epoch=2 lost=0 error=")
}

// answerLoss is a network that loses the answer to the first UPDATE.
type answerLoss struct {
	of       string // of another command; "" means of an UPDATE of one row
	happened atomic.Bool
	also     func() // runs at the same moment; nil for nothing
}

func (l *answerLoss) pool(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &lossyConn{conn, l}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type lossyConn struct {
	net.Conn
	loss *answerLoss
}

// Read breaks the connection instead of returning the message that one row was updated. Postgres sends that message
// after the commit, if the statement is a transaction.
func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:max(n, 0)], []byte(cmp.Or(c.loss.of, "UPDATE 1\x00"))) && !c.loss.happened.Swap(true) {
		if c.loss.also != nil {
			c.loss.also()
		}
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// The network breaks while the claim is under way. The server does not notice, and commits three seconds later, when
// the dispatcher has long looked for jobs that such a claim may have left behind.
func TestJobsOfAClaimThatCommitsLateAreGivenBack(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	exec(t, good, `CREATE SEQUENCE claims`)
	exec(t, good, `
		CREATE FUNCTION slow_once() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.status = 'running' AND nextval('claims') = 1 THEN PERFORM pg_sleep(3); END IF;
			RETURN NEW;
		END $$`)
	exec(t, good, `CREATE TRIGGER slow_once BEFORE UPDATE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION slow_once()`)
	id := enqueue(t, good, probe{}, outbox.Options{})
	var network breakable
	start(t, network.pool(t, good), handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, good, "the claim is under way", `
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`)
	network.cut()
	awaitSucceeded(t, good, 1)
	wantState(t, good, id, "succeeded attempt=1 epoch=3 lost=0 error=")
}

// breakable is a network that can be cut for a second: long enough that no cancel request gets through.
type breakable struct {
	mu    sync.Mutex
	conns []net.Conn
	until time.Time
}

func (b *breakable) pool(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if time.Now().Before(b.until) {
			return nil, errors.New("the network is down")
		}
		conn, err := dial(ctx, network, addr)
		b.conns = append(b.conns, conn)
		return conn, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (b *breakable) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = time.Now().Add(time.Second)
	for _, conn := range b.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	b.conns = nil
}
