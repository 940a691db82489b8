package operator

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// WithTx returns an operator whose questions and acts are part of a caller's transaction: an act takes effect, with its
// row in the audit and its notification, exactly if the transaction commits. A refusal, such as [ErrNotFound] or a
// [*StatusError], leaves the transaction as it was; an error of the server aborts it, like that of any statement. The
// transaction's session determines which rows the operator sees and changes: [WithTenant] sets nothing there.
//
// The rows that an act changes stay locked until the transaction ends, and workers that settle those jobs wait for it:
// be quick. Above READ COMMITTED, an act that meets a concurrent change fails with a serialization error, and the
// transaction must be repeated. [Operator.StepOperation], [Operator.RunOperations], [Operator.InSnapshot] and
// [Operator.Locked] need transactions of their own and fail. Like the transaction, the operator may be used by one
// goroutine only.
func (o *Operator) WithTx(tx pgx.Tx) *Operator {
	joined := *o
	joined.db, joined.txs, joined.in = sqlgen.New(tx), savepoints{tx}, tx
	return &joined
}

// errInTx is returned by calls that cannot be part of a caller's transaction.
var errInTx = errors.New("needs a transaction of its own, and the operator is in one of its caller's")

// savepoints begins savepoints in a caller's transaction. Settings made by SET LOCAL in a savepoint, such as a timeout
// of the operator's, outlive its release and would then affect the caller's statements. So they are restored.
type savepoints struct{ tx pgx.Tx }

// ours are the settings that questions and acts make for themselves.
const (
	askOurs = `
		SELECT array_agg(name ORDER BY name), array_agg(coalesce(current_setting(name, true), '') ORDER BY name)
		FROM unnest('{enable_seqscan,enable_bitmapscan,enable_sort,enable_incremental_sort,plan_cache_mode,max_parallel_workers_per_gather,jit,statement_timeout,lock_timeout,idle_in_transaction_session_timeout,app.tenant_id}'::text[]) AS name`
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

// Commit restores the settings and releases the savepoint.
func (p *savepoint) Commit(ctx context.Context) error {
	if _, err := p.Exec(ctx, setBack, p.names, p.values); err != nil {
		return err
	}
	return p.Tx.Commit(ctx)
}
