package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// FromSQL returns a [DB] that stores jobs through database/sql:
//
//	outbox.Enqueue(ctx, outbox.FromSQL(tx), args, outbox.Options{})
//
// [EnqueueMany], [PublishMany] and [Claimed.Complete] send arrays and need pgx's own driver (pgx/v5/stdlib).
//
// db is a *sql.Tx, *sql.Conn or *sql.DB. Only a transaction ties the job to your business change.
func FromSQL(db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) DB {
	return sqlDB{db}
}

type sqlDB struct {
	db interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

func (s sqlDB) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	result, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	n, err := result.RowsAffected()
	return pgconn.NewCommandTag(fmt.Sprintf("EXECUTE %d", n)), err
}

func (s sqlDB) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return sqlRows{rows}, nil
}

func (s sqlDB) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return s.db.QueryRowContext(ctx, query, args...)
}

// sqlBeginner is a database/sql handle on which several statements need a transaction.
type sqlBeginner interface {
	inTx(ctx context.Context, do func(DB) error) error
}

func (s sqlDB) inTx(ctx context.Context, do func(DB) error) error {
	db, ok := s.db.(interface {
		BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	})
	if !ok {
		return do(s) // already a transaction
	}
	if conn, ok := s.db.(interface {
		Raw(func(driver any) error) error
	}); ok {
		if begun, err := inManualSQLTx(conn.Raw); err != nil {
			return err
		} else if begun {
			return inSavepoint(ctx, s, do)
		}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if err := do(sqlDB{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

// inManualSQLTx reports what inManualTx does, for a *sql.Conn.
func inManualSQLTx(raw func(func(driver any) error) error) (begun bool, err error) {
	err = raw(func(driver any) error {
		conn, ok := driver.(interface{ Conn() *pgx.Conn })
		if !ok {
			return errUnseenTx
		}
		begun = inManualTx(conn.Conn())
		return nil
	})
	return begun, err
}

var errUnseenTx = errors.New("a *sql.Conn of this driver does not show whether it is in a transaction: " +
	"pass the *sql.Tx or the *sql.DB")

// sqlRows adapts *sql.Rows to code that was written for pgx.Rows.
type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close()                                       { _ = r.Rows.Close() }
func (r sqlRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r sqlRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r sqlRows) Values() ([]any, error)                       { return nil, errNoValues }
func (r sqlRows) RawValues() [][]byte                          { return nil }
func (r sqlRows) Conn() *pgx.Conn                              { return nil }
func (r sqlRows) TypeMap() *pgtype.Map                         { return nil }

var errNoValues = errors.New("database/sql rows have no Values; use Scan")
