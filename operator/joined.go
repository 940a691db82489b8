package operator

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// In returns an operator whose questions and acts are part of a caller's transaction: an act is
// made, with its row in the audit and its notification, exactly if the transaction commits. What is
// refused, with [ErrNotFound] or a [*StatusError], leaves the transaction as it was; an error of the
// server aborts it, as that of any statement does. Whose rows the operator sees and changes is what
// the transaction's session says: [TiedTo] sets nothing there.
//
// The rows that an act changes stay locked until the transaction ends, and workers that settle those
// jobs wait for it: be quick. Above READ COMMITTED an act that meets a concurrent change fails with a
// serialization error, and the transaction is to be repeated. [Operator.StepOperation],
// [Operator.RunOperations] and [Operator.AtOnce] need transactions of their own and fail. The operator is for
// one goroutine, as the transaction is.
func (o *Operator) In(tx pgx.Tx) *Operator {
	joined := *o
	joined.db, joined.txs, joined.in = sqlgen.New(tx), savepoints{tx}, tx
	return &joined
}

// errInTx is of what cannot be part of a caller's transaction.
var errInTx = errors.New("needs a transaction of its own, and the operator is in one of its caller's")

// savepoints begins savepoints in a caller's transaction. What SET LOCAL sets in one outlives its
// release, and would then concern the caller's statements: a timeout of ours, for example. So it is
// set back.
type savepoints struct{ tx pgx.Tx }

// ours are the settings that questions and acts make for themselves.
const (
	askOurs = `
		SELECT array_agg(name ORDER BY name), array_agg(current_setting(name) ORDER BY name)
		FROM unnest('{enable_seqscan,enable_bitmapscan,enable_sort,enable_incremental_sort,plan_cache_mode,max_parallel_workers_per_gather,jit,statement_timeout,lock_timeout,idle_in_transaction_session_timeout}'::text[]) AS name`
	setBack = `SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS before (name, value)`
)

// Begin begins a savepoint.
func (s savepoints) Begin(ctx context.Context) (pgx.Tx, error) {
	p := &savepoint{}
	if err := s.tx.QueryRow(ctx, askOurs).Scan(&p.names, &p.values); err != nil {
		return nil, err
	}
	var err error
	p.Tx, err = s.tx.Begin(ctx)
	return p, err
}

type savepoint struct {
	pgx.Tx
	names, values []string // of the settings, before
}

// Commit sets the settings back and releases the savepoint.
func (p *savepoint) Commit(ctx context.Context) error {
	if _, err := p.Exec(ctx, setBack, p.names, p.values); err != nil {
		return err
	}
	return p.Tx.Commit(ctx)
}
