package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
	"github.com/posthaste-dev/posthaste/schedule"
)

// mailer is something outside of the database. A repeat of a key does nothing.
type mailer struct {
	mu   sync.Mutex
	sent []string
	keys map[string]bool
}

func (m *mailer) send(key, mail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != "" && m.keys[key] {
		return
	}
	m.keys[key] = true
	m.sent = append(m.sent, mail)
}

func (m *mailer) reset() { m.sent, m.keys = nil, map[string]bool{} }

// shop is what handlers of the tests work on.
type shop struct {
	db   *outboxtest.DB
	mail mailer
}

type shopHandler func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error

// crash has CrashEverywhere look at a handler.
func crash(t testing.TB, db *outboxtest.DB, handler shopHandler) (boundaries int) {
	s := &shop{db: db}
	mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error { return handler(ctx, s, job) })
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{})
	return outboxtest.CrashEverywhere(t, w, receipt{Order: 7, To: "ada"}, outboxtest.Effects{
		Tables: []string{"sent", "balance"},
		State:  func(context.Context, outbox.DB) (any, error) { return s.mail.sent, nil },
		Reset:  s.mail.reset,
	})
}

func shopDB(t testing.TB) *outboxtest.DB {
	db := stored(t, pgtest.New(t))
	exec(t, db, `CREATE TABLE balance (customer text PRIMARY KEY, cents bigint NOT NULL)`)
	exec(t, db, `INSERT INTO balance VALUES ('ada', 100)`)
	return db
}

// notIdempotent are handlers with a bug each that shows in a crash only.
var notIdempotent = map[string]shopHandler{
	"it inserts by itself": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		_, err := s.db.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
		return err
	},
	"it adds by itself": func(ctx context.Context, s *shop, _ *outbox.Job[receipt]) error {
		_, err := s.db.Exec(ctx, `UPDATE balance SET cents = cents + 10 WHERE customer = 'ada'`)
		return err
	},
	"it looks whether it was done, and notes that too late": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		var done bool
		if err := s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM sent WHERE order_id = $1)`, job.Args.Order).Scan(&done); err != nil || done {
			return err
		}
		if _, err := s.db.Exec(ctx, `UPDATE balance SET cents = cents + 10 WHERE customer = 'ada'`); err != nil {
			return err
		}
		_, err := s.db.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
		return err
	},
	"it notes that it was done too early": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		first, err := inbox.Once(ctx, s.db, "shop", job.ID.String()) // commits by itself
		if err != nil || !first {
			return err
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
			return err
		})
	},
	"it sends a mail without a key": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		s.mail.send("", job.Args.To)
		return job.Tx(ctx, func(tx pgx.Tx) error { return job.Complete(ctx, tx) })
	},
	"its key is another in each attempt": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		s.mail.send(fmt.Sprintf("%s/%d", job.ID, job.Attempt), job.Args.To)
		_, err := s.db.Exec(ctx, `INSERT INTO balance VALUES ('bob', 1) ON CONFLICT DO NOTHING`)
		return err
	},
	"it enqueues what follows by itself": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		_, err := outbox.Enqueue(ctx, s.db, sum{A: job.Args.Order}, outbox.Options{})
		return err
	},
	"it publishes beside its transaction": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		if err := job.Tx(ctx, func(tx pgx.Tx) error { return job.Guard(ctx, tx) }); err != nil {
			return err
		}
		_, err := outbox.Publish(ctx, s.db, paid{job.Args.Order}, outbox.EventOptions{})
		return err
	},
	"its step writes by itself": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		_, err := dispatcher.Step(ctx, job.Claimed, "write", func(ctx context.Context) (int, error) {
			_, err := s.db.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
			return 1, err
		})
		return err
	},
	"it completes the job before the effect": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		if err := job.Tx(ctx, func(tx pgx.Tx) error { return job.Complete(ctx, tx) }); err != nil {
			return err
		}
		_, err := s.db.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
		return err
	},
	"its checkpoint is ahead of its work": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		from, _, err := outbox.LoadCheckpoint[int](ctx, job.Claimed)
		for n := from; err == nil && n < 3; n++ {
			if err = outbox.SaveCheckpoint(ctx, job.Claimed, n+1); err == nil {
				_, err = s.db.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, n)
			}
		}
		return err
	},
	"it writes in a transaction that a repeat does not notice": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if err := job.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE balance SET cents = cents - 10 WHERE customer = 'ada'`)
			return err
		})
	},
}

func TestCrashEverywhereFindsHandlersThatAreNotIdempotent(t *testing.T) {
	t.Parallel()
	if len(notIdempotent) < 10 {
		t.Errorf("%d planted handlers, want ten at least", len(notIdempotent))
	}
	for _, name := range slices.Sorted(maps.Keys(notIdempotent)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := shopDB(t)
			said := fails(t, func(t testing.TB) { crash(t, db, notIdempotent[name]) })
			if !strings.Contains(said, "a crash ") || !strings.Contains(said, "changes the effects") {
				t.Errorf("said %s", said)
			}
			if n := ask[int](t, db, `SELECT (SELECT count(*) FROM sent) + (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.history) + (SELECT count(*) FROM outbox.events)`); n != 0 {
				t.Errorf("%d rows are left", n)
			}
			t.Log(said)
		})
	}
}

var idempotent = map[string]shopHandler{
	"inbox.Once in the transaction": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			first, err := inbox.Once(ctx, tx, "shop", job.ID.String())
			if err != nil || !first {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order)
			return err
		})
	},
	"Complete in the transaction": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE balance SET cents = cents - 10 WHERE customer = 'ada'`); err != nil {
				return err
			}
			if _, err := outbox.Publish(ctx, tx, paid{job.Args.Order}, outbox.EventOptions{Key: "7"}); err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		})
	},
	"an upsert": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		_, err := s.db.Exec(ctx, `INSERT INTO balance VALUES ('bob', 5) ON CONFLICT (customer) DO UPDATE SET cents = 5`)
		return err
	},
	"a mail with the job's key": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		s.mail.send(job.ID.String(), job.Args.To)
		return nil
	},
	"steps": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		name, err := dispatcher.Step(ctx, job.Claimed, "mail", func(context.Context) (string, error) {
			s.mail.send(job.ID.String(), job.Args.To)
			return job.Args.To, nil
		})
		if err != nil {
			return err
		}
		_, err = dispatcher.StepTx(ctx, job.Claimed, job.DB, "write", func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, `INSERT INTO sent (order_id, note) VALUES ($1, $2)`, job.Args.Order, name)
			return 0, err
		})
		return err
	},
	"Guard, and a row that a repeat notices": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if err := job.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO sent (order_id) SELECT $1 WHERE NOT EXISTS (SELECT FROM sent WHERE order_id = $1)`, job.Args.Order)
			return err
		})
	},
	"follow-ups and idempotency keys": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		if _, err := job.Then(sum{A: job.Args.Order}, outbox.Options{}); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, s.db, sum{A: 1}, outbox.Options{IdempotencyKey: "sum " + job.ID.String()})
		return err
	},
	"a checkpoint behind work that may be repeated": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		from, _, err := outbox.LoadCheckpoint[int](ctx, job.Claimed)
		for n := from; err == nil && n < 3; n++ {
			if _, err = s.db.Exec(ctx, `INSERT INTO balance VALUES ($1, 0) ON CONFLICT DO NOTHING`, fmt.Sprint(n)); err == nil {
				err = outbox.SaveCheckpoint(ctx, job.Claimed, n+1)
			}
		}
		return err
	},
	"a batch, COPY and savepoints in one transaction": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`INSERT INTO sent (order_id) VALUES (1)`)
			b.Queue(`SELECT count(*) FROM sent`).QueryRow(func(row pgx.Row) error {
				var n int
				return row.Scan(&n)
			})
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"sent"}, []string{"order_id"}, pgx.CopyFromRows([][]any{{2}, {3}})); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = inner.Exec(ctx, `INSERT INTO sent (order_id) VALUES (4)`)
			return errors.Join(err, inner.Rollback(ctx), job.Complete(ctx, tx))
		})
	},
	"a failure that is tried again": func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		if job.Attempt == 1 {
			return errors.New("down")
		}
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES (1)`); err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		})
	},
}

func TestCrashEverywhereAcceptsIdempotentHandlers(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(idempotent)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if n := crash(t, shopDB(t), idempotent[name]); n < 2 {
				t.Errorf("%d boundaries", n)
			}
		})
	}
}

// A default says that two runs differ only if it calls what differs.
func TestColumnsWithConstantDefaultsAreCompared(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for column, compared := range map[string]bool{
		`timestamptz DEFAULT '-infinity'`:                           true,
		`timestamptz(3) DEFAULT '2000-01-01'::timestamptz(3)`:       true,
		`timestamp DEFAULT (to_timestamp(0) AT TIME ZONE 'UTC')`:    true,
		`uuid DEFAULT '00000000-0000-0000-0000-000000000001'::uuid`: true,
		`text DEFAULT 'now() or random() at ''CURRENT_DATE'''`:      true,
		`text[] DEFAULT ARRAY['nextval(']::text[]`:                  true,
		`text DEFAULT current_setting('outboxtest.none', true)`:     true,
		`int`:                              true,
		`bigserial`:                        false,
		`int GENERATED ALWAYS AS IDENTITY`: false,
		`timestamptz DEFAULT now()`:        false,
		`timestamptz DEFAULT ('2000-01-01'::timestamptz + (now() - now()))`: false,
		`timestamptz DEFAULT CURRENT_TIMESTAMP`:                             false,
		`date DEFAULT CURRENT_DATE`:                                         false,
		`timestamptz DEFAULT clock_timestamp()`:                             false,
		`text DEFAULT ('a' || gen_random_uuid()::text)`:                     false,
		`double precision DEFAULT random()`:                                 false,
		`uuid DEFAULT outbox.uuid_v7()`:                                     false,
		`text DEFAULT ('x'::text || pg_current_xact_id()::text)`:            false,
	} {
		t.Run(column, func(t *testing.T) {
			db := outboxtest.New(t, pool)
			exec(t, db, `CREATE TABLE made (o int, c `+column+`)`)
			mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
				_, err := db.Exec(ctx, `INSERT INTO made (o) VALUES (1)`)
				return err
			})
			said := fails(t, func(t testing.TB) {
				outboxtest.CrashEverywhere(t, outboxtest.NewWorker(t, db, mux, outboxtest.Config{}), receipt{}, outboxtest.Effects{Tables: []string{"made"}})
			})
			if strings.Contains(said, `"c":`) != compared {
				t.Errorf("want it compared: %t, but it said\n%s", compared, said)
			}
		})
	}
}

// Nothing of a handler runs when it is dead.
func TestNothingRunsAfterACrash(t *testing.T) {
	t.Parallel()
	db := shopDB(t)
	m := &mailer{}
	late := 0
	mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
		returned := false
		defer func() {
			if !returned {
				late++
			}
		}()
		_, err := db.Exec(ctx, `INSERT INTO balance VALUES ('bob', 1) ON CONFLICT DO NOTHING`)
		m.send(job.ID.String(), "after the statement")
		returned = true
		return err
	})
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{})
	var during []int
	n := outboxtest.CrashEverywhere(t, w, receipt{}, outboxtest.Effects{
		State: func(context.Context, outbox.DB) (any, error) {
			during = append(during, late)
			return m.sent, nil
		},
		Reset: m.reset,
	})
	if n != 4 || len(during) != 6 || slices.Max(during) != 0 {
		t.Errorf("%d boundaries, %v deferred calls of killed handlers", n, during)
	}
}

// The handler runs three transactions at once. When the first one, which has the connection, has crashed, the second
// one gets it, and the third one comes when the job runs again: they are dead as well.
func TestNoGoroutineRunsAfterACrash(t *testing.T) {
	t.Parallel()
	db := shopDB(t)
	var again chan struct{} // closed when the job runs again
	handler := func(ctx context.Context, s *shop, job *outbox.Job[receipt]) error {
		if job.Attempt > 1 && again != nil {
			close(again)
		}
		again = nil
		if job.Attempt == 1 {
			again = make(chan struct{})
		}
		insert := func(ctx context.Context, tx pgx.Tx, order int) error {
			_, err := tx.Exec(ctx, `INSERT INTO sent (order_id) SELECT $1 WHERE NOT EXISTS (SELECT FROM sent WHERE order_id = $1)`, order)
			return err
		}
		began, ended, repeated := make(chan struct{}), make(chan struct{}), again
		var committing atomic.Bool
		others, ctx := errgroup.WithContext(ctx)
		follow := func(order int, after, orAfter <-chan struct{}) {
			others.Go(func() error {
				select {
				case <-after:
				case <-orAfter:
				case <-ctx.Done():
					return ctx.Err()
				}
				return job.Tx(ctx, func(tx pgx.Tx) error {
					if !committing.Load() {
						t.Errorf("transaction %d begins after the crash, in the process that has crashed", order)
					}
					return insert(ctx, tx, order)
				})
			})
		}
		follow(2, began, nil)
		follow(3, ended, repeated)
		err := job.Tx(ctx, func(tx pgx.Tx) error {
			close(began)
			defer committing.Store(true)
			return insert(ctx, tx, 1)
		})
		close(ended)
		return errors.Join(err, others.Wait())
	}
	if n := crash(t, db, handler); n < 12 {
		t.Errorf("%d boundaries, want those of three transactions", n)
	}
}

// The first attempt fails, and the job waits an hour for the second, unless a crash takes the place of the failure:
// nothing else may get older by that hour.
func TestNoTimePassesBetweenTheAttemptsOfACrash(t *testing.T) {
	t.Parallel()
	db := shopDB(t)
	exec(t, db, `CREATE TABLE dues (at timestamptz); INSERT INTO dues VALUES ('2000-01-01 00:00:00Z')`)
	mux := handle(func(_ context.Context, job *outbox.Job[receipt]) error {
		if job.Attempt == 1 {
			return errors.New("down")
		}
		return nil
	})
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{
		Backoff: dispatcher.Waits(time.Hour), Columns: []string{"dues.at"},
		Schedules: []schedule.Schedule{schedule.Every("hourly", time.Hour, sum{}, schedule.Options{})},
	})
	if n := outboxtest.CrashEverywhere(t, w, receipt{}, outboxtest.Effects{Tables: []string{"dues"}}); n != 2 {
		t.Errorf("%d boundaries", n)
	}
}

func TestCrashEverywhereNamesTheBoundary(t *testing.T) {
	t.Parallel()
	db := shopDB(t)
	said := fails(t, func(t testing.TB) { crash(t, db, notIdempotent["it inserts by itself"]) })
	for _, want := range []string{
		"a crash after INSERT INTO sent (order_id) VALUES ($1) changes the effects (-without +with the crash):",
		"a crash before the handler's success is stored changes the effects",
		`    + sent {"note": null, "order_id": 7}`,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if strings.Contains(said, "a crash before INSERT") {
		t.Errorf("a crash that changes nothing is reported:\n%s", said)
	}
}
