package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Row names what [Operator.Locked] locks: a queue, a sink, a schedule of the tenant, or an operation.
type Row struct {
	Queue, Sink, Schedule string
	Tenant, Operation     outbox.ID
}

// Locked runs do with an operator whose questions and acts form one transaction (READ COMMITTED) that has locked the
// row first: what do reads of it is its latest state, and nobody changes it before do has acted. Locked waits for
// others who are changing the row, such as a step of the operation, and is not refused because of them, as
// [Operator.InSnapshot] can be. A row that does not exist cannot be locked. If do returns an error, the transaction is
// rolled back. Locked needs a transaction of its own, and do may not use that operator after it returns.
func (o *Operator) Locked(ctx context.Context, row Row, do func(*Operator) error) error {
	if o.in != nil {
		return errInTx
	}
	ctx, cancel := context.WithTimeout(ctx, 2*statementTimeout) // a step may be in progress
	defer cancel()
	options := pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED" + setTenant(ctx)}
	return pgx.BeginTxFunc(ctx, o.pool.Pool, options, func(tx pgx.Tx) error {
		if err := row.lock(ctx, sqlgen.New(tx)); err != nil {
			return err
		}
		return do(o.WithTx(tx))
	})
}

func (r Row) lock(ctx context.Context, db *sqlgen.Queries) error {
	switch {
	case r.Queue != "":
		return db.LockQueue(ctx, r.Queue)
	case r.Sink != "":
		return db.LockSink(ctx, r.Sink)
	case r.Schedule != "":
		return db.LockSchedule(ctx, pgvalue.UUID(orRoot(r.Tenant)), r.Schedule)
	}
	return db.LockOperation(ctx, pgvalue.UUID(r.Operation))
}
