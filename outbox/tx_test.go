package outbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// What is sent alone needs no BEGIN, unless the options are to be in it.
func TestJobsAloneAreStoredInATransactionOfItsOptions(t *testing.T) {
	t.Parallel()
	var count trips
	p, pool := producerWith(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &count })
	enqueue := func(opts pgx.TxOptions) error {
		return pgx.BeginTxFunc(t.Context(), p, opts, func(tx pgx.Tx) error { return add(t, tx) })
	}
	if err := enqueue(pgx.TxOptions{AccessMode: pgx.ReadOnly}); err == nil || !strings.Contains(err.Error(), "read-only transaction") {
		t.Errorf("read only: %v, want a refusal", err)
	}
	if err := enqueue(pgx.TxOptions{CommitQuery: "rollback"}); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("with a commit that rolls back: %v", err)
	}
	if got := countJobs(t, pool); got != 0 {
		t.Errorf("%d jobs are stored, want none", got)
	}
	before := count.n.Load()
	if err := enqueue(pgx.TxOptions{IsoLevel: pgx.Serializable, BeginQuery: "begin isolation level serializable"}); err != nil {
		t.Error(err)
	}
	if trips := count.n.Load() - before; trips != 1 {
		t.Errorf("%d round trips, want 1", trips)
	}
	if got := countJobs(t, pool); got != 1 {
		t.Errorf("%d jobs are stored, want 1", got)
	}
}

// trips counts what pgx sends: a batch is one.
type trips struct{ n atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// producerWith returns a producer on a pool of its own, and that pool, on a database with a table for business rows.
func producerWith(t *testing.T, change func(*pgxpool.Config)) (*Producer, *pgxpool.Pool) {
	t.Helper()
	return producerOn(t, ordersDB(t), change)
}

func ordersDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.New(t)
	exec(t, db, `CREATE TABLE orders (id integer PRIMARY KEY)`)
	return db
}

// producerOn returns a producer with a pool of its own, of two connections, and that pool.
func producerOn(t *testing.T, db *pgxpool.Pool, change func(*pgxpool.Config)) (*Producer, *pgxpool.Pool) {
	t.Helper()
	config := db.Config()
	config.MaxConns = 2
	if change != nil {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := NewProducer(pool, NotifyOff)
	t.Cleanup(func() { flush(t, p) })
	return p, pool
}

func order(ctx context.Context, tx pgx.Tx, id int) error {
	_, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, id)
	return err
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func TestABusinessRowAndItsJobAreTwoRoundTrips(t *testing.T) {
	t.Parallel()
	var count trips
	p, _ := producerWith(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &count })
	for what, c := range map[string]struct {
		do   func(tx pgx.Tx) error
		want int64
	}{
		"nothing":   {func(pgx.Tx) error { return nil }, 0},
		"a job":     {func(tx pgx.Tx) error { return add(t, tx) }, 1},
		"ten jobs":  {func(tx pgx.Tx) error { return repeat(10, func() error { return add(t, tx) }) }, 1},
		"300 jobs":  {func(tx pgx.Tx) error { return repeat(300, func() error { return add(t, tx) }) }, 3},
		"and a row": {func(tx pgx.Tx) error { return errors.Join(order(t.Context(), tx, 1), add(t, tx)) }, 2},
		"the row after its job": {func(tx pgx.Tx) error {
			return errors.Join(add(t, tx), order(t.Context(), tx, 2))
		}, 2},
		"a row that returns its id": {func(tx pgx.Tx) error {
			var id int
			return errors.Join(tx.QueryRow(t.Context(), `INSERT INTO orders VALUES ($1) RETURNING id`, 3).Scan(&id), add(t, tx))
		}, 2},
		"without a job": {func(tx pgx.Tx) error { return order(t.Context(), tx, 4) }, 2},
		"a rollback":    {func(tx pgx.Tx) error { return errors.Join(add(t, tx), io.EOF) }, 0},
	} {
		before := count.n.Load()
		if err := p.InTx(t.Context(), c.do); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%s: %v", what, err)
		}
		if got := count.n.Load() - before; got != c.want {
			t.Errorf("%s: %d round trips, want %d", what, got, c.want)
		}
	}
}

func add(t *testing.T, tx pgx.Tx) error {
	_, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{})
	return err
}

func repeat(n int, do func() error) error {
	for range n {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// Whatever looks at the database within the transaction finds the job there, and
// whatever is sent finds the transaction begun.
func TestWhatLooksFindsTheJob(t *testing.T) {
	t.Parallel()
	const count = `SELECT count(*) FROM outbox.jobs WHERE pg_current_xact_id_if_assigned() IS NOT NULL`
	for name, look := range map[string]func(ctx context.Context, tx pgx.Tx) (n int, err error){
		"QueryRow": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.QueryRow(ctx, count).Scan(&n)
		},
		"QueryRow with an argument": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.QueryRow(ctx, count+` AND kind = $1`, "greet").Scan(&n)
		},
		"QueryRow with an option": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.QueryRow(ctx, count+` AND kind = $1`, pgx.QueryExecModeExec, "greet").Scan(&n)
		},
		"QueryRow with named arguments": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.QueryRow(ctx, count+` AND kind = @kind`, pgx.NamedArgs{"kind": "greet"}).Scan(&n)
		},
		"Query": func(ctx context.Context, tx pgx.Tx) (int, error) {
			rows, _ := tx.Query(ctx, count)
			return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		},
		"Exec": func(ctx context.Context, tx pgx.Tx) (int, error) {
			tag, err := tx.Exec(ctx, `UPDATE outbox.jobs SET priority = $1`, 7)
			return int(tag.RowsAffected()), err
		},
		"Exec of several": func(ctx context.Context, tx pgx.Tx) (int, error) {
			tag, err := tx.Exec(ctx, `SET LOCAL work_mem = '4MB'; UPDATE outbox.jobs SET priority = 7`)
			return int(tag.RowsAffected()), err
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			b := &pgx.Batch{}
			b.Queue(count).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			return n, tx.SendBatch(ctx, b).Close()
		},
		"Conn": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.Conn().QueryRow(ctx, count).Scan(&n)
		},
		"a savepoint": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { return inner.QueryRow(ctx, count).Scan(&n) })
		},
		"Prepare": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			_, err = tx.Prepare(ctx, "count", count)
			return n, errors.Join(err, tx.QueryRow(ctx, "count").Scan(&n))
		},
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			_, err = tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
			return n, errors.Join(err, tx.QueryRow(ctx, count).Scan(&n))
		},
		"LargeObjects": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			objects := tx.LargeObjects()
			_, err = objects.Create(ctx, 0)
			return n, errors.Join(err, tx.QueryRow(ctx, count).Scan(&n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, pool := producerWith(t, nil)
			err := p.InTx(t.Context(), func(tx pgx.Tx) error {
				if err := add(t, tx); err != nil {
					return err
				}
				if n, err := look(t.Context(), tx); err != nil || n != 1 {
					t.Errorf("it sees %d jobs, %v; want 1", n, err)
				}
				return io.EOF
			})
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			if got := countJobs(t, pool); got != 0 {
				t.Errorf("%d jobs after the rollback, want none", got)
			}
		})
	}
}

// What the database refuses ends the transaction, as it does when every statement
// is sent by itself, whichever statement brings the refusal.
func TestARefusalEndsTheTransaction(t *testing.T) {
	t.Parallel()
	const noJobs = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no jobs today'; END $$;
		CREATE TRIGGER refuse AFTER INSERT ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION refuse()`
	const later = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no jobs today'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`
	for name, c := range map[string]struct {
		setUp string
		do    func(ctx context.Context, tx pgx.Tx) error // its error is ignored
		want  string                                     // of the commit
	}{
		"a job, at the commit":         {noJobs, func(_ context.Context, tx pgx.Tx) error { return add(t, tx) }, "enqueue greet: ERROR: no jobs today"},
		"a job, at the next statement": {noJobs, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(add(t, tx), order(ctx, tx, 1)) }, "commit unexpectedly resulted in rollback"},
		"a commit":                     {later, func(_ context.Context, tx pgx.Tx) error { return add(t, tx) }, "no jobs today"},
		"a row, then a job": {``, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(order(ctx, tx, 0), order(ctx, tx, 0), add(t, tx))
		}, "current transaction is aborted"},
		"the first statement":                 {``, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(order(ctx, tx, 0), order(ctx, tx, 1)) }, "commit unexpectedly resulted in rollback"},
		"the first statement, by its grammar": {``, badGrammar, "commit unexpectedly resulted in rollback"},
		"an argument that cannot be sent":     {``, badArgument, "commit unexpectedly resulted in rollback"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, pool := producerWith(t, nil)
			exec(t, pool, `INSERT INTO orders VALUES (0); `+c.setUp)
			err := p.InTx(t.Context(), func(tx pgx.Tx) error {
				_ = c.do(t.Context(), tx)
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("commit: %v, want %q", err, c.want)
			}
			if jobs, rows := countJobs(t, pool), ask[int](t, pool, `SELECT count(*) FROM orders`); jobs != 0 || rows != 1 {
				t.Errorf("%d jobs and %d rows are stored, want none and the one before", jobs, rows)
			}
			if n := pool.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections are kept", n)
			}
		})
	}
}

// badGrammar sends a statement that is refused before BEGIN gets to the server; nothing after it may count.
func badGrammar(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO ordres VALUES ($1)`, 1)
	err = errors.Join(err, order(ctx, tx, 2))
	_, again := Enqueue(ctx, tx, greet{"ada"}, Options{})
	return errors.Join(err, again)
}

func badArgument(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, "no number")
	return errors.Join(err, order(ctx, tx, 2))
}

func TestARowThatIsNotThereAbortsNothing(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	err := p.InTx(t.Context(), func(tx pgx.Tx) error {
		var id int
		if err := tx.QueryRow(t.Context(), `SELECT id FROM orders WHERE id = $1`, 1).Scan(&id); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("got %v, want no rows", err)
		}
		return add(t, tx)
	})
	if got := countJobs(t, pool); got != 1 || err != nil {
		t.Errorf("%d jobs, %v; want 1", got, err)
	}
}

func TestATransactionThatIsOverTakesNothing(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	for _, end := range []func(pgx.Tx, context.Context) error{pgx.Tx.Commit, pgx.Tx.Rollback} {
		tx, err := p.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := end(tx, t.Context()); err != nil {
			t.Fatal(err)
		}
		_, queried := tx.Query(t.Context(), `SELECT 1`)
		_, begun := tx.Begin(t.Context())
		for _, err := range []error{
			add(t, tx), order(t.Context(), tx, 1), queried, begun, tx.QueryRow(t.Context(), `SELECT $1`, 1).Scan(nil),
			tx.Commit(t.Context()), tx.Rollback(t.Context()),
		} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("got %v, want %v", err, pgx.ErrTxClosed)
			}
		}
	}
	if got := countJobs(t, pool); got != 0 {
		t.Errorf("%d jobs, want none", got)
	}
}

// LargeObjects has no error to return. Where there is no transaction for them, their calls have it.
func TestLargeObjectsOfNoTransaction(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"committed":           func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"committed with more": func(ctx context.Context, tx pgx.Tx) error { return errors.Join(order(ctx, tx, 1), tx.Commit(ctx)) },
		"rolled back":         func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"aborted":             func(ctx context.Context, tx pgx.Tx) error { _ = badGrammar(ctx, tx); return nil },
		"with its connection gone": func(ctx context.Context, tx pgx.Tx) error {
			return tx.(*producerTx).raw.Close(ctx)
		},
	} {
		tx, err := p.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := end(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		objects := tx.LargeObjects()
		if id, err := objects.Create(t.Context(), 0); err == nil {
			t.Errorf("%s: made the large object %d, want an error", name, id)
		}
		_ = tx.Rollback(t.Context())
	}
	if n := ask[int](t, pool, `SELECT count(*) FROM pg_largeobject_metadata`); n != 0 {
		t.Errorf("%d large objects are stored, want none", n)
	}
}

func TestACancelledCommitKeepsNoConnection(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := p.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(order(ctx, tx, 1), add(t, tx)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := tx.Commit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if jobs, rows := countJobs(t, pool), ask[int](t, pool, `SELECT count(*) FROM orders`); jobs != rows {
		t.Errorf("%d jobs and %d rows, want both or none", jobs, rows)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are kept", n)
	}
}

// A transaction of nothing but enqueues is sent without BEGIN and COMMIT. What is sent
// together is one transaction all the same, however pgx sends it.
func TestJobsAloneAreStoredTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := ordersDB(t)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not urgent'; END $$`)
	for _, mode := range execModes {
		for name, when := range map[string]string{
			"the last is refused":               "CREATE TRIGGER refuse AFTER INSERT",
			"the last is refused at the commit": "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT",
		} {
			deferred := ""
			if strings.Contains(when, "CONSTRAINT") {
				deferred = "DEFERRABLE INITIALLY DEFERRED"
			}
			t.Run(mode.String()+", "+name, func(t *testing.T) {
				pgtest.Empty(t, db)
				exec(t, db, `DROP TRIGGER IF EXISTS refuse ON outbox.jobs`)
				exec(t, db, when+` ON outbox.jobs `+deferred+` FOR EACH ROW WHEN (NEW.priority < 0) EXECUTE FUNCTION refuse()`)
				var count trips
				p, pool := producerOn(t, db, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.Tracer = mode, &count
				})
				exec(t, pool, `SELECT 1`) // it is connected
				before := count.n.Load()
				err := p.InTx(t.Context(), func(tx pgx.Tx) error {
					_, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{Priority: -1})
					return errors.Join(add(t, tx), add(t, tx), err)
				})
				if trips := count.n.Load() - before; trips != 1 {
					t.Errorf("%d round trips, want 1", trips)
				}
				if err == nil || !strings.Contains(err.Error(), "not urgent") {
					t.Errorf("commit: %v, want the refusal", err)
				}
				if got := countJobs(t, pool); got != 0 {
					t.Errorf("%d jobs are stored, want none", got)
				}
				if err := p.InTx(t.Context(), func(tx pgx.Tx) error { return errors.Join(add(t, tx), add(t, tx)) }); err != nil {
					t.Errorf("the next transaction: %v", err)
				}
				if got := countJobs(t, pool); got != 2 {
					t.Errorf("%d jobs are stored, want 2", got)
				}
			})
		}
	}
}

func TestEveryExecModeStoresWhatWasKeptBack(t *testing.T) {
	t.Parallel()
	db := ordersDB(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			pgtest.Empty(t, db)
			exec(t, db, `DELETE FROM orders`)
			p, pool := producerOn(t, db, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			for i, opts := range []Options{{}, {Queue: "mail", Priority: -5, Key: KeyRules{Name: `a 'key'`}, Headers: map[string]string{"é": `"\'`}}} {
				var want map[string]any
				err := p.InTx(t.Context(), func(tx pgx.Tx) error {
					id, err := Enqueue(t.Context(), tx, greet{`O'Hara; $1 \`}, opts)
					if err := errors.Join(err, order(t.Context(), tx, i), add(t, tx)); err != nil {
						return err
					}
					want = stored(t, tx, id)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				id, err := Enqueue(t.Context(), pool, greet{`O'Hara; $1 \`}, opts)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(stored(t, pool, id), want); diff != "" {
					t.Errorf("row (-by itself +kept back):\n%s", diff)
				}
			}
			if got := countJobs(t, pool); got != 6 {
				t.Errorf("%d jobs, want 6", got)
			}
		})
	}
}

// A savepoint that is rolled back takes along what was enqueued since, through whatever
// it was: as in a transaction of pgx's own.
func TestASavepointThatIsTakenBackTakesEveryJobSince(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	run := func(ctx context.Context, on interface {
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	}, statements ...string,
	) (err error) {
		for _, sql := range statements {
			_, one := on.Exec(ctx, sql)
			err = errors.Join(err, one)
		}
		return err
	}
	for name, tt := range map[string]struct {
		do   func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error
		jobs int
	}{
		"through the outer transaction": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			inner, err := tx.Begin(ctx)
			return errors.Join(err, add(tx), inner.Rollback(ctx))
		}, 0},
		"one before it, too": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			before := add(tx)
			inner, err := tx.Begin(ctx)
			return errors.Join(before, err, add(tx), add(inner), inner.Rollback(ctx))
		}, 1},
		"one after it, too": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			inner, err := tx.Begin(ctx)
			return errors.Join(err, add(tx), inner.Rollback(ctx), add(tx))
		}, 1},
		"a savepoint that is kept": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			inner, err := tx.Begin(ctx)
			return errors.Join(err, add(tx), inner.Commit(ctx))
		}, 1},
		"the inner of two": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			outer, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			inner, err := outer.Begin(ctx)
			return errors.Join(err, add(tx), add(outer), inner.Rollback(ctx), add(tx), outer.Commit(ctx))
		}, 1},
		"the outer of two": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			outer, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			inner, err := outer.Begin(ctx)
			return errors.Join(err, add(tx), inner.Commit(ctx), add(tx), outer.Rollback(ctx))
		}, 0},
		"the connection": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			conn := tx.Conn()
			return errors.Join(run(ctx, conn, `SAVEPOINT s`), add(tx), run(ctx, conn, `ROLLBACK TO SAVEPOINT s`))
		}, 0},
		"the connection of a savepoint": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			conn := inner.Conn()
			return errors.Join(run(ctx, conn, `SAVEPOINT s`), add(tx), run(ctx, conn, `ROLLBACK TO SAVEPOINT s`), inner.Commit(ctx))
		}, 0},
		"statements": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			return errors.Join(run(ctx, tx, `SAVEPOINT s`), add(tx), run(ctx, tx, `ROLLBACK TO SAVEPOINT s`))
		}, 0},
		"statements, one before": {func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx) error) error {
			return errors.Join(add(tx), run(ctx, tx, `SAVEPOINT s`), add(tx), run(ctx, tx, `ROLLBACK TO SAVEPOINT s`), add(tx))
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			tenant := NewID()
			for what, opts := range map[string]Options{
				"root": {}, "a tenant": {Tenant: tenant}, "root, a key": {Key: KeyRules{Name: "k"}}, "a tenant, a key": {Tenant: tenant, Key: KeyRules{Name: "k"}},
			} {
				add := func(tx pgx.Tx) error {
					_, err := Enqueue(t.Context(), tx, greet{"ada"}, opts)
					return err
				}
				do := func(tx pgx.Tx) error { return tt.do(t.Context(), tx, add) }
				for how, in := range map[string]func() error{
					"pgx": func() error { return pgx.BeginFunc(t.Context(), pool, do) }, "a producer": func() error { return p.InTx(t.Context(), do) },
				} {
					exec(t, pool, `DELETE FROM outbox.jobs`)
					if err := in(); err != nil {
						t.Fatalf("%s, in a transaction of %s: %v", what, how, err)
					}
					if got := countJobs(t, pool); got != tt.jobs {
						t.Errorf("%s, in a transaction of %s: %d jobs, want %d", what, how, got, tt.jobs)
					}
				}
			}
		})
	}
}

// unsent are statements that fail before anything is sent.
var unsent = map[string]struct {
	do    func(ctx context.Context, tx pgx.Tx) error // must fail
	ended bool                                       // is the context of do
	jobs  int                                        // and as many events are stored
}{
	"QueryRow": {func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT $1::int`, 1).Scan(new(int))
	}, true, 4},
	"QueryRow without arguments": {func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT 1`).Scan(nil)
	}, true, 4},
	"Exec": {func(ctx context.Context, tx pgx.Tx) error { return order(ctx, tx, 2) }, true, 4},
	"Query": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, `SELECT 1`)
		return err
	}, true, 4},
	"CopyFrom": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows([][]any{{2}}))
		return err
	}, true, 4},
	"SendBatch": {func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT 1`)
		return tx.SendBatch(ctx, b).Close()
	}, true, 4},
	"Prepare": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Prepare(ctx, "one", `SELECT 1`)
		return err
	}, true, 4},
	"Begin": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Begin(ctx)
		return err
	}, true, 4},
	"beside rows": {besideRows, false, 8},
	"the connection beside rows": {func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT 1`)
		if err != nil {
			panic(err)
		}
		defer rows.Close()
		err = addEach(ctx, tx)
		_ = tx.Conn() // whose statements would come before what is deferred
		return errors.Join(err, order(ctx, tx, 2))
	}, false, 0},
	"rewriting": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT 1`, noRewriter{})
		return err
	}, false, 0},
	"encoding": {func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT $1::int`, make(chan int))
		return err
	}, false, 0},
}

// A statement may fail before anything of it is sent, and the caller may live with that. What was deferred until it is
// then sent with the next one; where that is not certain, the transaction commits nothing.
func TestAStatementThatIsNotSentLosesNoJob(t *testing.T) {
	t.Parallel()
	db := ordersDB(t)
	for _, mode := range execModes {
		p, pool := producerOn(t, db, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
		for name, c := range unsent {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				exec(t, db, `DELETE FROM orders; DELETE FROM outbox.jobs; DELETE FROM outbox.events`)
				err := p.InTx(t.Context(), func(tx pgx.Tx) error {
					if err := errors.Join(order(t.Context(), tx, 1), addEach(t.Context(), tx)); err != nil {
						return err
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if c.ended {
						cancel()
					}
					if err := c.do(ctx, tx); err == nil {
						t.Error("the statement succeeds, want an error")
					}
					return nil
				})
				if c.jobs > 0 && err != nil || c.jobs == 0 && !errors.Is(err, pgx.ErrTxCommitRollback) {
					t.Errorf("commit: %v", err)
				}
				orders, jobs := ask[int](t, db, `SELECT count(*) FROM orders`), countJobs(t, db)
				events := ask[int](t, db, `SELECT count(*) FROM outbox.events`)
				if orders != min(c.jobs, 1) || jobs != c.jobs || events != c.jobs {
					t.Errorf("%d rows, %d jobs and %d events are stored, want %d, %[5]d and %[5]d", orders, jobs, events,
						min(c.jobs, 1), c.jobs)
				}
				for range pool.Config().MaxConns { // all are free
					conn, err := pool.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Release()
				}
			})
		}
	}
}

// addEach enqueues a job and publishes an event of the root tenant and of another one, each with a key and without.
func addEach(ctx context.Context, tx pgx.Tx) error {
	var errs []error
	for _, tenant := range []ID{RootTenant, tenant} {
		for _, key := range []string{"", "k"} {
			_, job := Enqueue(ctx, tx, greet{"ada"}, Options{Tenant: tenant, Key: KeyRules{Name: key}})
			_, event := Publish(ctx, tx, Raw{KindName: "greeted", Payload: []byte("1")}, EventOptions{Tenant: tenant, Key: key})
			errs = append(errs, job, event)
		}
	}
	return errors.Join(errs...)
}

// besideRows sends a statement while the rows of another are open.
func besideRows(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT generate_series(1, 1000)`)
	if err != nil {
		panic(err)
	}
	defer rows.Close()
	if err := addEach(ctx, tx); err != nil {
		panic(err)
	}
	return tx.QueryRow(ctx, `SELECT $1::int`, 1).Scan(new(int))
}

// noRewriter fails as pgx.StrictNamedArgs does for a name that it lacks.
type noRewriter struct{}

func (noRewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return "", nil, errors.New("an argument is missing")
}

// A deferred statement is sent after Enqueue or Publish has returned, and callers use their buffers again.
func TestADeferredPayloadIsTheOneThatWasGiven(t *testing.T) {
	t.Parallel()
	p, pool := producerWith(t, nil)
	for _, tenant := range []ID{RootTenant, tenant} {
		for _, key := range []string{"", "k"} {
			for name, deferred := range map[string]func(tx pgx.Tx, buffer []byte) (ID, error){
				"jobs": func(tx pgx.Tx, buffer []byte) (ID, error) {
					return Enqueue(t.Context(), tx, Raw{KindName: "k", Payload: buffer}, Options{Tenant: tenant, Key: KeyRules{Name: key}})
				},
				"jobs of a pointer": func(tx pgx.Tx, buffer []byte) (ID, error) {
					return Enqueue(t.Context(), tx, &Raw{KindName: "k", Payload: buffer}, Options{Tenant: tenant, Key: KeyRules{Name: key}})
				},
				"events": func(tx pgx.Tx, buffer []byte) (ID, error) {
					return Publish(t.Context(), tx, Raw{KindName: "k", Payload: buffer}, EventOptions{Tenant: tenant, Key: key})
				},
				"events of a pointer": func(tx pgx.Tx, buffer []byte) (ID, error) {
					return Publish(t.Context(), tx, &Raw{KindName: "k", Payload: buffer}, EventOptions{Tenant: tenant, Key: key})
				},
			} {
				buffer, table := []byte("11"), strings.Fields(name)[0]
				var id ID
				err := p.InTx(t.Context(), func(tx pgx.Tx) (err error) {
					id, err = deferred(tx, buffer)
					copy(buffer, "22")
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := ask[string](t, pool, `SELECT encode(payload, 'escape') FROM outbox.`+table+` WHERE id = $1`, id); got != "11" {
					t.Errorf("%s of %v with key %q: stored %s, want 11", name, tenant, key, got)
				}
			}
		}
	}
}
