package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

var errEffect = errors.New("the effect failed")

// Every message is delivered ten times, in any order, by sixteen consumers at
// once of which a third fail after their effect: each effect is there once.
func TestRedeliveriesHaveOneEffect(t *testing.T) {
	t.Parallel()
	const ids, deliveries, consumers = 500, 10, 16
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `CREATE TABLE effects (message_id text)`); err != nil {
		t.Fatal(err)
	}

	queue := make(chan string, ids*deliveries)
	for range deliveries - 1 {
		for _, i := range rand.Perm(ids) {
			queue <- fmt.Sprint("message-", i)
		}
	}
	close(queue)
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for id := range queue {
				if err := effect(t.Context(), db, id, rand.N(3) == 0); err != nil && !errors.Is(err, errEffect) {
					t.Errorf("deliver %s: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range ids { // the last delivery succeeds
		if err := effect(t.Context(), db, fmt.Sprint("message-", i), false); err != nil {
			t.Fatal(err)
		}
	}

	var effects, distinct int
	err := db.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT message_id) FROM effects`).Scan(&effects, &distinct)
	if err != nil || effects != ids || distinct != ids {
		t.Errorf("got %d effects of %d messages, %v; want %d of %d", effects, distinct, err, ids, ids)
	}
}

func effect(ctx context.Context, db *pgxpool.Pool, id string, fail bool) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		first, err := inbox.Once(ctx, tx, "ledger", id)
		if err != nil || !first {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, id); err != nil {
			return err
		}
		if fail {
			return errEffect
		}
		return nil
	})
}

func TestASecondTransactionWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(context.Context, pgx.Tx) error
		want bool
	}{
		"and is not the first if that commits":  {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, false},
		"and is the first if that rolls back":   {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, true},
		"and is the first if that is cut off":   {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, true},
		"and is the first if its savepoint was": {rollbackToSavepoint, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			one := begin(t, db, pgx.ReadCommitted)
			if _, err := one.Exec(t.Context(), `SAVEPOINT before`); err != nil {
				t.Fatal(err)
			}
			if first, err := inbox.Once(t.Context(), one, "mailer", "1"); err != nil || !first {
				t.Fatalf("first = %t, %v; want true", first, err)
			}

			two := begin(t, db, pgx.ReadCommitted)
			answer := make(chan bool, 1)
			go func() {
				first, err := inbox.Once(t.Context(), two, "mailer", "1")
				if err != nil {
					t.Error(err)
				}
				answer <- first
			}()
			awaitLock(t, db, two)
			if err := c.end(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			if got := <-answer; got != c.want {
				t.Errorf("first = %t, want %t", got, c.want)
			}
		})
	}
}

func rollbackToSavepoint(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `ROLLBACK TO SAVEPOINT before`)
	return err
}

func TestManyTransactionsWithOneMessageHaveOneFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var wg sync.WaitGroup
	firsts := make([]bool, 64)
	for i := range firsts {
		wg.Go(func() {
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
				firsts[i], err = inbox.Once(t.Context(), tx, "mailer", "1")
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	firsts = slices.DeleteFunc(firsts, func(first bool) bool { return !first })
	if len(firsts) != 1 {
		t.Errorf("%d of 64 were the first, want 1", len(firsts))
	}
}

// A transaction that cannot see what was committed since its snapshot must not
// say "handled" (it cannot know) nor "first" (it is not).
func TestStricterIsolationIsAnErrorNotAWrongAnswer(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			late := begin(t, db, level)
			if _, err := late.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			once(t, db, "1", true)
			first, err := inbox.Once(t.Context(), late, "mailer", "1")
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "40001" {
				t.Errorf("first = %t, %v; want a serialization failure", first, err)
			}

			again := begin(t, db, level)
			if first, err := inbox.Once(t.Context(), again, "mailer", "1"); err != nil || first {
				t.Errorf("with a new snapshot first = %t, %v; want false", first, err)
			}
		})
	}
}

func TestTheSameTransactionIsFirstOnlyOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx := begin(t, pgtest.New(t), level)
		for i, want := range []bool{true, false, false} {
			if first, err := inbox.Once(t.Context(), tx, "mailer", "1"); err != nil || first != want {
				t.Errorf("%s: call %d: first = %t, %v; want %t", level, i, first, err, want)
			}
		}
	}
}

func TestConsumersCountApart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, consumer := range []string{"mailer", "Mailer", "mailer:eu"} {
		if first, err := inbox.Once(t.Context(), db, consumer, "1"); err != nil || !first {
			t.Errorf("%s: first = %t, %v; want true", consumer, first, err)
		}
	}
	once(t, db, "1", false)
}

func TestMessageIDsAreComparedByteForByte(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, id := range []string{"a", "A", " a", "a ", "é", "e\u0301", strings.Repeat("x", 512), strings.Repeat("x", 511), `'; DROP TABLE outbox.inbox; --`, "\x01\n"} {
		once(t, db, id, true)
		once(t, db, id, false)
	}
}

func TestOnceTakesEveryHandle(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	sqlDB := stdlib.OpenDBFromPool(pool)
	defer sqlDB.Close()
	sqlTx, err := sqlDB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sqlTx.Rollback()
	for name, db := range map[string]outbox.DB{
		"pgx.Tx": begin(t, pool, pgx.ReadCommitted), "pgx.Conn": conn.Conn(), "pgxpool.Pool": pool,
		"sql.Tx": outbox.FromSQL(sqlTx), "sql.DB": outbox.FromSQL(sqlDB),
	} {
		for _, want := range []bool{true, false} {
			if first, err := inbox.Once(t.Context(), db, "mailer", name); err != nil || first != want {
				t.Errorf("%s: first = %t, %v; want %t", name, first, err, want)
			}
		}
	}
}

func TestWhatIsNotAcceptableIsNamedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		consumer, messageID string
		want                []outbox.InvalidError
	}{
		"an empty consumer": {"", "1", []outbox.InvalidError{{Field: "consumer", Reason: "is empty, want 1 to 128 characters"}}},
		"a long consumer":   {strings.Repeat("c", 129), "1", []outbox.InvalidError{{Field: "consumer", Reason: "is 129 bytes long, want at most 128"}}},
		"a consumer that is no name": {"-x", "1", []outbox.InvalidError{
			{Field: "consumer", Reason: `is "-x": byte 0 is "-", want ASCII letters, digits and _ . : / -, first a letter or digit`},
		}},
		"an empty id":           {"mailer", "", []outbox.InvalidError{{Field: "messageID", Reason: "is empty, want 1 to 512 bytes"}}},
		"a long id":             {"mailer", strings.Repeat("i", 513), []outbox.InvalidError{{Field: "messageID", Reason: "is 513 bytes long, want at most 512; use a hash of it"}}},
		"an id with a NUL":      {"mailer", "a\x00b", []outbox.InvalidError{{Field: "messageID", Reason: "has a NUL at byte 1, which Postgres text cannot hold"}}},
		"an id that is no text": {"mailer", "\xff", []outbox.InvalidError{{Field: "messageID", Reason: "is not valid UTF-8; use its hexadecimal form"}}},
		"both, and both are said": {"", "", []outbox.InvalidError{
			{Field: "consumer", Reason: "is empty, want 1 to 128 characters"}, {Field: "messageID", Reason: "is empty, want 1 to 512 bytes"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, err := inbox.Once(t.Context(), untouched{t: t}, c.consumer, c.messageID)
			if first {
				t.Error("first = true")
			}
			if diff := cmp.Diff(c.want, mistakes(err)); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsumersAreNamedLikeKinds(t *testing.T) {
	t.Parallel()
	names := []string{"", "a", "A9_.:/-", "-", ".", "é", "a\n", "a b", "a\x00", strings.Repeat("a", 128), strings.Repeat("a", 129)}
	for c := range 256 {
		names = append(names, string([]byte{byte(c)}), string([]byte{'a', byte(c)}))
	}
	for _, name := range names {
		_, asKind := outbox.Enqueue(t.Context(), new(called), outbox.Raw{KindName: name, Payload: []byte("1")}, outbox.Options{})
		_, asConsumer := inbox.Once(t.Context(), new(called), name, "1")
		if (asKind == nil) != (asConsumer == nil) {
			t.Errorf("%q as a kind: %v, as a consumer: %v", name, asKind, asConsumer)
		}
	}
}

// untouched fails the test when SQL is sent.
type untouched struct {
	outbox.DB
	t *testing.T
}

func (u untouched) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	u.t.Errorf("sent %s", sql)
	return pgconn.CommandTag{}, nil
}

// called accepts every statement.
type called struct{ outbox.DB }

func (called) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.NewCommandTag("INSERT 0 1"), nil
}

// mistakes takes a joined error apart.
func mistakes(err error) []outbox.InvalidError {
	switch err := err.(type) {
	case *outbox.InvalidError:
		return []outbox.InvalidError{*err}
	case interface{ Unwrap() []error }:
		var all []outbox.InvalidError
		for _, e := range err.Unwrap() {
			all = append(all, mistakes(e)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		return mistakes(inner)
	}
	return nil
}

// once hands a message to the consumer mailer in a transaction that commits.
func once(t *testing.T, db *pgxpool.Pool, messageID string, want bool) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		first, err := inbox.Once(t.Context(), tx, "mailer", messageID)
		if first != want {
			t.Errorf("message %q: first = %t, want %t", messageID, first, want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// begin starts a transaction that is rolled back when the test ends without its end.
func begin(t *testing.T, db *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// awaitLock returns when the session of tx waits for another.
func awaitLock(t *testing.T, db *pgxpool.Pool, tx pgx.Tx) {
	t.Helper()
	pid := tx.Conn().PgConn().PID()
	for start := time.Now(); time.Since(start) < 20*time.Second; {
		var waits bool
		if err := db.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0 FROM pg_sleep(0.005)`, pid).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if waits {
			return
		}
	}
	t.Error("the second transaction does not wait")
}
