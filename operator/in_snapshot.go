package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	snapshotTries = 5                     // each with a snapshot of its own
	snapshotPause = 20 * time.Millisecond // before the second; longer before each later one
)

// InSnapshot runs do with an operator whose questions and acts form one transaction with one snapshot (REPEATABLE
// READ): do acts on exactly what it has read, or nothing is done. If somebody else changes that meanwhile, or merely
// adds to the audit, do runs again and sees the change; after five such runs, InSnapshot returns the server's
// serialization error. If do returns an error, the transaction is rolled back. InSnapshot needs a transaction of its
// own, and do may not use that operator after it returns.
func (o *Operator) InSnapshot(ctx context.Context, do func(*Operator) error) error {
	if o.in != nil {
		return errInTx
	}
	ctx, cancel := context.WithTimeout(ctx, 2*statementTimeout)
	defer cancel()
	options := pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL REPEATABLE READ" + setTenant(ctx)}
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, o.pool.Pool, options, func(tx pgx.Tx) error { return do(o.WithTx(tx)) })
		if pgsession.State(err) != pgsession.SerializationFailure || try == snapshotTries {
			return err
		}
		_ = backoff.Sleep(ctx, time.Duration(try)*snapshotPause)
	}
}
