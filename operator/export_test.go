package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Within is an operator in a transaction.
func Within(tx pgx.Tx) *Operator {
	return &Operator{db: sqlgen.New(tx), txs: tx, by: by{actor: unknownActor}}
}

// FirstPage is a page of rounds that begin with so few rows, and of one of them at a time.
func (o *Operator) FirstPage(ctx context.Context, f Filter, rows int32) (Page, error) {
	var page Page
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		page, err = readPage(ctx, db, f.params(), rows, 0)
		return err
	})
	return page, err
}
