// Package orm_test enqueues jobs in transactions of other libraries, as docs/guides/enqueue.md says: the job exists
// exactly if the row does.
package orm_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Order is the row of a business change.
type Order struct {
	bun.BaseModel `bun:"table:orders" gorm:"-"`
	Item          string
}

type sendReceipt struct{ Item string }

func (sendReceipt) Kind() string { return "receipt.send" }

// enqueue stores two jobs, one of them by a statement that sends an array.
func enqueue(ctx context.Context, db outbox.DB, item string) error {
	if _, err := outbox.Enqueue(ctx, db, sendReceipt{item}, outbox.Options{}); err != nil {
		return err
	}
	request, err := outbox.Encode(sendReceipt{item}, outbox.Options{})
	if err != nil {
		return err
	}
	_, err = outbox.EnqueueMany(ctx, db, []outbox.Request{request})
	return err
}

var errChanged = errors.New("the change is not to be made")

// changes inserts a row and enqueues, by the library of that name, in a transaction that ends as end says.
var changes = map[string]struct {
	documented string // in the page's table
	change     func(ctx context.Context, db *sql.DB, item string, end error) error
}{
	"database/sql": {"outbox.FromSQL(tx)", func(ctx context.Context, db *sql.DB, item string, end error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (item) VALUES ($1)`, item); err != nil {
			return err
		}
		if err := errors.Join(enqueue(ctx, outbox.FromSQL(tx), item), end); err != nil {
			return err
		}
		return tx.Commit()
	}},
	"GORM": {"outbox.FromSQL(tx.Statement.ConnPool)", func(ctx context.Context, db *sql.DB, item string, end error) error {
		g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
		if err != nil {
			return err
		}
		return g.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(&Order{Item: item}).Error; err != nil {
				return err
			}
			return errors.Join(enqueue(ctx, outbox.FromSQL(tx.Statement.ConnPool), item), end)
		})
	}},
	"bun": {"outbox.FromSQL(tx.Tx)", func(ctx context.Context, db *sql.DB, item string, end error) error {
		b := bun.NewDB(db, pgdialect.New())
		return b.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			if _, err := tx.NewInsert().Model(&Order{Item: item}).Exec(ctx); err != nil {
				return err
			}
			return errors.Join(enqueue(ctx, outbox.FromSQL(tx.Tx), item), end)
		})
	}},
	"ent": {"ent.NewClient(ent.Driver(entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})))", func(ctx context.Context, db *sql.DB, item string, end error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		// A client of ent has it by ent.NewClient(ent.Driver(driver)).
		driver := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})
		insert, args := entsql.Dialect(dialect.Postgres).Insert("orders").Columns("item").Values(item).Query()
		if err := driver.Exec(ctx, insert, args, nil); err != nil {
			return err
		}
		if err := errors.Join(enqueue(ctx, outbox.FromSQL(tx), item), end); err != nil {
			return err
		}
		return tx.Commit()
	}},
}

func TestJobsExistExactlyIfTheChangeDoes(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/enqueue.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, library := range changes {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(page), "`"+library.documented+"`") {
				t.Errorf("docs/guides/enqueue.md does not name %s", library.documented)
			}
			pool := pgtest.New(t)
			if _, err := pool.Exec(t.Context(), `CREATE TABLE orders (item text)`); err != nil {
				t.Fatal(err)
			}
			db := stdlib.OpenDBFromPool(pool)
			if err := library.change(t.Context(), db, "tea", errChanged); !errors.Is(err, errChanged) {
				t.Fatalf("the change that is rolled back: %v", err)
			}
			wantRows(t, pool, 0, 0)
			if err := library.change(t.Context(), db, "coffee", nil); err != nil {
				t.Fatal(err)
			}
			wantRows(t, pool, 1, 2)
		})
	}
}

func wantRows(t *testing.T, pool *pgxpool.Pool, orders, jobs int) {
	t.Helper()
	var gotOrders, gotJobs int
	err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox.open_jobs)`).
		Scan(&gotOrders, &gotJobs)
	if err != nil || gotOrders != orders || gotJobs != jobs {
		t.Errorf("%d orders and %d jobs, want %d and %d (%v)", gotOrders, gotJobs, orders, jobs, err)
	}
}
