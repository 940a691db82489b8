package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

var orders = inbox.Partition{Consumer: "ledger", Source: "orders", Number: 3}

// Consumers take the partition from each other at any moment, also within the transactions of the one before; a
// third of the transactions are rolled back, and each consumer begins a few messages before its position, as a
// broker does that has not seen the last acknowledgements. Each message has one effect, in order.
func TestEachMessageHasOneEffectInOrder(t *testing.T) {
	t.Parallel()
	const messages, consumers = 400, 6
	db := pgtest.New(t)
	exec(t, db, `CREATE TABLE effects (id bigserial, message bigint)`)
	ctx, done := context.WithTimeout(t.Context(), 2*time.Minute)
	defer done()
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if consume(ctx, t, db, messages) {
					done()
				}
				time.Sleep(rand.N(10 * time.Millisecond))
			}
		})
	}
	wg.Wait()

	var got []int64
	rows, err := db.Query(t.Context(), `SELECT message FROM effects ORDER BY id`)
	if err == nil {
		got, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		t.Fatal(err)
	}
	want := make([]int64, messages)
	for i := range want {
		want[i] = int64(i)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

// consume reads until it is fenced, and reports whether it came to the end.
func consume(ctx context.Context, t *testing.T, db *pgxpool.Pool, messages int64) (end bool) {
	p, err := inbox.Seek(ctx, db, orders)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return false
	}
	for i := max(0, p.Next()-3); i < messages; {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			first, err := p.Advance(ctx, tx, i)
			if err != nil || !first {
				return err
			}
			if _, err = tx.Exec(ctx, `INSERT INTO effects (message) VALUES ($1)`, i); err == nil && rand.N(3) == 0 {
				err = errEffect
			}
			return err
		})
		switch {
		case err == nil:
			i++
		case !errors.Is(err, errEffect):
			if !errors.Is(err, inbox.ErrFenced) && ctx.Err() == nil {
				t.Error(err)
			}
			return false
		}
	}
	return true
}

func TestAZombieIsFenced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	before := seek(t, db, orders, 0)
	advance(t, db, before, 0, true)
	after := seek(t, db, orders, 1)
	for range 2 {
		if first, err := before.Advance(t.Context(), db, 1); first || !errors.Is(err, inbox.ErrFenced) {
			t.Errorf("first = %t, %v; want %v", first, err, inbox.ErrFenced)
		}
	}
	if first, err := before.Advance(t.Context(), db, 0); first || !errors.Is(err, inbox.ErrFenced) {
		t.Errorf("of a repeat first = %t, %v; want %v", first, err, inbox.ErrFenced)
	}
	advance(t, db, after, 1, true)
}

// What a transaction commits whose consumer is being replaced counts for the next one; what it rolls back does not.
func TestSeekWaitsForATransactionThatAdvances(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(context.Context, pgx.Tx) error
		next int64
	}{
		"and begins behind it if that commits":  {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, 1},
		"and begins with it if that rolls back": {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, 0},
		"and begins with it if that is cut off": {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			before := seek(t, db, orders, 0)
			one := begin(t, db, pgx.ReadCommitted)
			if first, err := before.Advance(t.Context(), one, 0); err != nil || !first {
				t.Fatalf("first = %t, %v; want true", first, err)
			}
			two := begin(t, db, pgx.ReadCommitted)
			taken := make(chan *inbox.Position, 1)
			go func() {
				p, err := inbox.Seek(t.Context(), two, orders)
				if err != nil {
					t.Error(err)
				}
				taken <- p
			}()
			awaitLock(t, db, two)
			if err := c.end(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			if after := <-taken; after == nil || after.Next() != c.next {
				t.Errorf("position = %+v, want next %d", after, c.next)
			}
		})
	}
}

func TestWhatWasRolledBackIsHandledAgainAndNotSkipped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := seek(t, db, orders, 0)
	advance(t, db, p, 4, true) // 0 to 3 are not there
	tx := begin(t, db, pgx.ReadCommitted)
	for _, position := range []int64{5, 7, 8} { // several in one transaction
		advance(t, tx, p, position, true)
		advance(t, tx, p, position, false)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuse(t, db, p, 9, "it is at 4, and 8 was rolled back")
	refuse(t, db, p, 8, "it is at 4, and 7 was rolled back")
	refuse(t, db, p, 7, "it is at 4, and 5 was rolled back")
	advance(t, db, p, 5, true)
	refuse(t, db, p, 8, "it is at 5, and 7 was rolled back")
	refuse(t, db, p, 10, "it is at 5, and 9 was rolled back")
	for _, position := range []int64{7, 8, 9} {
		advance(t, db, p, position, true)
	}
	advance(t, db, p, 4, false)
	seek(t, db, orders, 10)
}

// Advance itself can fail, and the transaction with it.
func TestWhatCouldNotBeAskedForIsNotSkipped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := seek(t, db, orders, 0)
	advance(t, db, p, 0, true)
	tx := begin(t, db, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT 1/0`); err == nil {
		t.Fatal("the transaction is not aborted")
	}
	if first, err := p.Advance(t.Context(), tx, 1); first || err == nil {
		t.Errorf("first = %t, %v; want an error", first, err)
	}
	refuse(t, db, p, 2, "it is at 0, and 1 was rolled back")
	advance(t, db, p, 1, true)
	advance(t, db, p, 2, true)
}

// A consumer advances to any position at any time, in transactions and savepoints of which half are rolled back. The
// model remembers each position that was asked for, for ever: none is passed over, and none is handled twice.
func TestAPositionPassesOverNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := seek(t, db, orders, 0)
	asked, at := map[int64]bool{}, int64(-1)
	var did []string
	step := func(tx pgx.Tx) {
		position := max(0, at-1+rand.N[int64](6))
		want, least := "refused", int64(-1)
		for other := range asked {
			if other < position {
				least = max(least, other)
			}
		}
		switch {
		case position <= at:
			want = "not new"
		case least <= at:
			want = "new"
		}
		got := "refused"
		switch first, err := p.Advance(t.Context(), tx, position); {
		case first:
			got, at = "new", position
		case err == nil:
			got = "not new"
		}
		if got != "not new" {
			asked[position] = true
		}
		did = append(did, fmt.Sprint(position, " ", got))
		if got != want {
			t.Fatalf("%s; want %s", strings.Join(did, ", "), want)
		}
	}
	for range 300 {
		outer := begin(t, db, pgx.ReadCommitted)
		before := at
		for range rand.N(3) {
			step(outer)
			inner, err := outer.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			saved := at
			for range rand.N(3) {
				step(inner)
			}
			if end(t, inner) != "commit" {
				at = saved
			}
		}
		if end(t, outer) != "commit" {
			at = before
		}
		did = append(did, fmt.Sprint("at ", at))
	}
	t.Logf("it came to %d", at)
}

// end commits every other transaction, or savepoint.
func end(t *testing.T, tx pgx.Tx) (how string) {
	t.Helper()
	how, do := "commit", tx.Commit
	if rand.N(2) == 0 {
		how, do = "roll back", tx.Rollback
	}
	if err := do(t.Context()); err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	return how
}

func TestPartitionsSourcesAndConsumersCountApart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, of := range []inbox.Partition{
		orders,
		{Consumer: "Ledger", Source: "orders", Number: 3},
		{Consumer: "ledger", Source: "Orders", Number: 3},
		{Consumer: "ledger", Source: "orders", Number: 4},
		{Consumer: "ledger", Source: "orders 2026-11-26T10:00:00Z", Number: 3},
	} {
		p := seek(t, db, of, 0)
		advance(t, db, p, 11, true)
		advance(t, db, p, 11, false)
	}
}

// A topic that was deleted and made again counts from the beginning.
func TestAPartitionThatIsReset(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	before := seek(t, db, orders, 0)
	advance(t, db, before, 100, true)
	if err := inbox.Reset(t.Context(), db, orders, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Advance(t.Context(), db, 101); !errors.Is(err, inbox.ErrFenced) {
		t.Errorf("a consumer of before the reset: %v, want %v", err, inbox.ErrFenced)
	}
	advance(t, db, seek(t, db, orders, 0), 0, true)
	if err := inbox.Reset(t.Context(), db, inbox.Partition{Consumer: "new", Source: "orders"}, 50); err != nil {
		t.Fatal(err)
	}
	seek(t, db, inbox.Partition{Consumer: "new", Source: "orders"}, 50)
}

func TestStricterIsolationIsNoWrongPosition(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			p := seek(t, db, orders, 0)
			late := begin(t, db, level)
			if _, err := late.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			seek(t, db, orders, 0)
			first, err := p.Advance(t.Context(), late, 0)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "40001" {
				t.Errorf("first = %t, %v; want a serialization failure", first, err)
			}
			if _, err := p.Advance(t.Context(), begin(t, db, level), 0); !errors.Is(err, inbox.ErrFenced) {
				t.Errorf("with a new snapshot: %v, want %v", err, inbox.ErrFenced)
			}
		})
	}
}

func TestPositionsWorkInADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	if _, err := inbox.Seek(t.Context(), db, orders); err == nil || !strings.Contains(err.Error(), "inbox.DDL") {
		t.Errorf("error without the table = %v, want one that names inbox.DDL", err)
	}
	exec(t, db, inbox.DDL)
	advance(t, db, seek(t, db, orders, 0), 0, true)
	if err := migrate.Up(t.Context(), db); err == nil || !strings.Contains(err.Error(), "the tables of inbox.DDL") {
		t.Errorf("a migration beside the tables of inbox.DDL = %v, want an error that names them", err)
	}
	// The way out that it names.
	exec(t, db, `CREATE SCHEMA inbox_before; ALTER TABLE outbox.inbox SET SCHEMA inbox_before; ALTER TABLE outbox.inbox_positions SET SCHEMA inbox_before`)
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO outbox.inbox SELECT * FROM inbox_before.inbox; INSERT INTO outbox.inbox_positions SELECT * FROM inbox_before.inbox_positions`)
	advance(t, db, seek(t, db, orders, 1), 1, true)
}

func TestPositionsThatCannotBe(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 513)
	for name, c := range map[string]struct {
		of   inbox.Partition
		want []outbox.InvalidError
	}{
		"nothing": {inbox.Partition{}, []outbox.InvalidError{
			{Field: "consumer", Reason: "is empty, want 1 to 128 characters"}, {Field: "source", Reason: "is empty, want 1 to 512 bytes"},
		}},
		"a long source": {inbox.Partition{Consumer: "c", Source: long}, []outbox.InvalidError{{Field: "source", Reason: "is 513 bytes long, want at most 512; use a hash of it"}}},
		"no text":       {inbox.Partition{Consumer: "c", Source: "\xff"}, []outbox.InvalidError{{Field: "source", Reason: "is not valid UTF-8; use its hexadecimal form"}}},
		"a negative":    {inbox.Partition{Consumer: "c", Source: "s", Number: -1}, []outbox.InvalidError{{Field: "partition", Reason: "is -1, want 0 to 2147483647"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inbox.Seek(t.Context(), nil, c.of)
			wantInvalid(t, err, c.want)
			wantInvalid(t, inbox.Reset(t.Context(), nil, c.of, 0), c.want)
		})
	}
	wantInvalid(t, inbox.Reset(t.Context(), nil, orders, -1), []outbox.InvalidError{{Field: "next", Reason: "is -1, want 0 or more"}})
	_, err := new(inbox.Position).Advance(t.Context(), nil, -1)
	wantInvalid(t, err, []outbox.InvalidError{{Field: "position", Reason: "is -1, want 0 or more"}})
}

func seek(t *testing.T, db outbox.DB, of inbox.Partition, next int64) *inbox.Position {
	t.Helper()
	p, err := inbox.Seek(t.Context(), db, of)
	if err != nil {
		t.Fatal(err)
	}
	if p.Next() != next {
		t.Errorf("%+v: next = %d, want %d", of, p.Next(), next)
	}
	return p
}

func advance(t *testing.T, db outbox.DB, p *inbox.Position, position int64, want bool) {
	t.Helper()
	if first, err := p.Advance(t.Context(), db, position); err != nil || first != want {
		t.Errorf("to %d: first = %t, %v; want %t", position, first, err, want)
	}
}

func refuse(t *testing.T, db outbox.DB, p *inbox.Position, position int64, want string) {
	t.Helper()
	if first, err := p.Advance(t.Context(), db, position); first || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("to %d: first = %t, %v; want the error %q", position, first, err, want)
	}
}

func exec(t *testing.T, db outbox.DB, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", sql, err))
	}
}

func wantInvalid(t *testing.T, err error, want []outbox.InvalidError) {
	t.Helper()
	if diff := cmp.Diff(want, mistakes(err)); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}
