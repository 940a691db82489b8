package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// statementTimeout limits a statement: a filter that matches hardly anything in a long history is given up.
const statementTimeout = 10 * time.Second

// ErrNotFound reports that no job has the id: it never existed, its transaction has not committed, or it was trimmed.
var ErrNotFound = engine.ErrNotFound

// ErrPastDeadline reports that a job cannot run any more because its deadline has passed. Nothing was changed.
var ErrPastDeadline = errors.New("its deadline has passed")

// StatusError reports that a job is in a status in which the act is not possible. Nothing was changed.
type StatusError struct {
	ID     outbox.ID
	Status outbox.Status // in which the job was found
	Act    string        // "retry", "dismiss", "cancel", "release", "replay"
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s job %s: it is %s", e.Act, e.ID, e.Status)
}

// An Operator reads jobs and queues and acts on them. It is safe for concurrent use. Each of its statements is given up
// after 10 s, except those that step, stop or resume an operation: these have up to 30 s.
type Operator struct {
	db   *sqlgen.Queries // of pool
	pool tied
	txs  outbox.Beginner // the pool, or the transaction that it is in
	in   pgx.Tx          // the caller's transaction that it is in; nil if none
	by   by

	check outbox.Checker // nil accepts every payload
	only  []string       // statuses of jobs that may be acted on; empty means any
	epoch *int64         // of a job that may be acted on; nil means any

	forget bool // drop what a job with a new payload has remembered
}

// New returns an operator of the database that pool connects to. Its acts are recorded under an unknown actor; see
// [Operator.As]. It sees the rows that the pool's login may see, unless the context restricts it; see [WithTenant].
func New(pool *pgxpool.Pool) *Operator {
	db := tied{pool}
	return &Operator{db: sqlgen.New(db), pool: db, txs: db, by: by{actor: unknownActor}}
}

// CheckedBy returns an operator that validates new payloads against their kinds' schemas, as outbox.Options.Check does;
// nil accepts every payload. Package kinds has such a checker.
func (o *Operator) CheckedBy(check outbox.Checker) *Operator {
	strict := *o
	strict.check = check
	return &strict
}

// Only returns an operator whose Cancel, Release, Retry, Dismiss, ReplayEdited and WouldReplayEdited refuse, with a
// [*StatusError], a job that by then is in none of these statuses: an operator who has counted the waiting jobs does
// not stop those that run by then. Without statuses it restricts nothing. Other methods, such as those that act on many
// jobs, have conditions of their own and ignore these.
func (o *Operator) Only(statuses ...outbox.Status) *Operator {
	strict := *o
	strict.only = nil
	for _, s := range statuses {
		strict.only = append(strict.only, string(s))
	}
	return &strict
}

// AtEpoch returns an operator whose Cancel, Release, Retry, Dismiss, ReplayEdited and WouldReplayEdited refuse, with a
// [*StatusError], a job with another epoch: one that has run, or was acted on, since a person saw it, even if it is
// back in the same status. Other methods ignore it.
func (o *Operator) AtEpoch(epoch int64) *Operator {
	strict := *o
	strict.epoch = &epoch
	return &strict
}

// unconditional returns the operator without the conditions of Only and AtEpoch, which are about a job of its caller's.
func (o *Operator) unconditional() *Operator {
	free := *o
	free.only, free.epoch = nil, nil
	return &free
}

// mayActOn reports whether the conditions of Only and AtEpoch permit an act on a job.
func (o *Operator) mayActOn(job Job) bool {
	return (len(o.only) == 0 || slices.Contains(o.only, string(job.Status))) &&
		(o.epoch == nil || *o.epoch == job.Epoch)
}

// Forgetting returns an operator whose ReplayEdited and WouldReplayEdited also drop what the job has remembered: its
// checkpoint and the results of its steps. Its handler starts over, and every step runs again, including those of
// dispatcher.StepTx. The audit records how many steps those were.
func (o *Operator) Forgetting() *Operator {
	anew := *o
	anew.forget = true
	return &anew
}

// bounded returns the context of one statement.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, statementTimeout)
}

// scanIndexes makes the statements of a transaction scan indexes.
const scanIndexes = `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off; ` +
	`SET LOCAL max_parallel_workers_per_gather = 0`

// inOrder makes them scan an index that has the order that they ask for. For example, dead letters that are wanted in
// the order of jobs_dead_letter_idx are then found there, and not among all jobs. Each statement is planned for its own
// parameters: a tenant has an index of its own, and the number of rows between two ids differs.
const inOrder = `; SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off; SET LOCAL plan_cache_mode = force_custom_plan`

// byIndex runs statements in a transaction in which they scan indexes. The server may otherwise choose to read all
// jobs, because row-level security withholds statistics from it.
func (o *Operator) byIndex(ctx context.Context, ask func(*sqlgen.Queries) error) error {
	return pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, scanIndexes+inOrder); err != nil {
			return err
		}
		return ask(sqlgen.New(tx))
	})
}

// atOneMoment runs statements that see one snapshot, and scan indexes. In a caller's transaction they see what it sees.
func (o *Operator) atOneMoment(ctx context.Context, ask func(pgx.Tx) error) error {
	if o.in == nil {
		begin := "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " + scanIndexes
		return pgx.BeginTxFunc(ctx, o.pool.Pool, pgx.TxOptions{BeginQuery: begin + setTenant(ctx)}, ask)
	}
	return pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, scanIndexes); err != nil {
			return err
		}
		return ask(tx)
	})
}
