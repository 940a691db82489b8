package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	atOnceTries = 5                     // each with a snapshot of its own
	atOncePause = 20 * time.Millisecond // before the second; longer before each later one
)

// AtOnce runs do with an operator whose questions and acts are one transaction with one snapshot
// (REPEATABLE READ): what do acts on is as it has read it, or nothing is done. Where somebody else changes
// it meanwhile, or merely adds to the audit, do runs again and sees that; after five such runs AtOnce
// returns the server's serialization error. The transaction is rolled back if do returns an error. It needs a
// transaction of its own, and do may not use that operator after it returns.
func (o *Operator) AtOnce(ctx context.Context, do func(*Operator) error) error {
	if o.in != nil {
		return errInTx
	}
	ctx, cancel := context.WithTimeout(ctx, 2*statementTimeout)
	defer cancel()
	options := pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL REPEATABLE READ" + setTenant(ctx)}
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, o.pool.Pool, options, func(tx pgx.Tx) error { return do(o.In(tx)) })
		if pgsession.State(err) != pgsession.SerializationFailure || try == atOnceTries {
			return err
		}
		_ = backoff.Sleep(ctx, time.Duration(try)*atOncePause)
	}
}
