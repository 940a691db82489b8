package operator

import (
	"cmp"
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Within returns an operator in a transaction.
func Within(tx pgx.Tx) *Operator {
	return &Operator{db: sqlgen.New(tx), txs: tx, by: by{actor: unknownActor}}
}

// FirstPage returns a page of rounds that begin with so few rows, and of one of them at a time.
func (o *Operator) FirstPage(ctx context.Context, f Filter, rows int32) (JobPage, error) {
	var page JobPage
	f.Tenant = cmp.Or(f.Tenant, tenantIn(ctx))
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = readPage(ctx, db, f.params(), rows, 0)
		return err
	})
	return page, err
}

// FirstAuditPage returns such a page of the audit.
func (o *Operator) FirstAuditPage(ctx context.Context, f AuditFilter, rows int32) (page AuditPage, err error) {
	err = o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = readAudit(ctx, db, f, rows, 0)
		return err
	})
	return page, err
}

// FirstLetters returns a page of dead letters of rounds that begin with so few rows, and of one of them at a time.
func (o *Operator) FirstLetters(ctx context.Context, f DeadLetterFilter, before outbox.ID, limit int, rows int32) (DeadLetterPage, error) {
	var page DeadLetterPage
	f.Tenant = cmp.Or(f.Tenant, tenantIn(ctx))
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = letterRounds(ctx, db, f.listed(before, int32(limit)), rows, 0)
		return err
	})
	return page, err
}

// Planned returns the operator, which adds to plans the server's plan of each question that it asks in a transaction,
// and of each insertion, with the rows and the buffers that it read.
func (o *Operator) Planned(plans *[]string) *Operator {
	planned := *o
	planned.txs = planning{o.pool, plans}
	return &planned
}

type planning struct {
	outbox.Beginner
	plans *[]string
}

func (p planning) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := p.Beginner.Begin(ctx)
	return plannedTx{tx, p.plans}, err
}

type plannedTx struct {
	pgx.Tx
	plans *[]string
}

func (tx plannedTx) explain(ctx context.Context, sql string, args []any) {
	if strings.HasPrefix(sql, "-- name: BindTenant ") {
		return // to explain it is to bind, and it would return what it has bound
	}
	rows, _ := tx.Tx.Query(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+sql, args...) // its error is the next one's
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		lines = []string{err.Error()}
	}
	*tx.plans = append(*tx.plans, strings.Join(lines, "\n"))
}

// Exec explains an insertion in a savepoint: to explain it with its rows is to insert them.
func (tx plannedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "INSERT") {
		inner, err := tx.Tx.Begin(ctx)
		if err != nil {
			return pgconn.CommandTag{}, err
		}
		plannedTx{inner, tx.plans}.explain(ctx, sql, args)
		if err := inner.Rollback(ctx); err != nil {
			return pgconn.CommandTag{}, err
		}
	}
	return tx.Tx.Exec(ctx, sql, args...)
}

func (tx plannedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx.explain(ctx, sql, args)
	return tx.Tx.Query(ctx, sql, args...)
}

func (tx plannedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx.explain(ctx, sql, args)
	return tx.Tx.QueryRow(ctx, sql, args...)
}

const (
	LettersAtOnce = lettersAtOnce
	AsCounted     = asCounted
)

// TimeOf returns how long a plan takes.
var TimeOf = timeOf
