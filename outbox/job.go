package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Claimed is a job as its worker sees it: the stored job and the lease. Its methods are fenced: they fail with
// [ErrLeaseLost] once another worker may own the job. A Claimed belongs to one attempt; do not change its fields,
// except Result and DB.
type Claimed struct {
	ID          ID            // of the job, the same in each attempt
	Tenant      ID            // owner of the job; RootTenant if the producer named none
	Queue       string        // where it waited
	Kind        string        // the work to be done
	Priority    int           // higher is more urgent
	Attempt     int           // from 1, for display; a snooze lowers it again
	MaxAttempts int           // the attempt with this number is the last
	LostLeases  int           // how many workers died or stalled with this job
	Epoch       int64         // the fencing token, for other systems that the handler writes to; 0 in package memory
	Key         string        // Options.Key.Name; "" for a job without a key
	Worker      string        // holder of the lease
	Timeout     time.Duration // of this job; 0 means its kind's
	Backoff     Backoff       // of this job; nil means its kind's
	RunAt       time.Time     // when it became due, by the database's clock
	CreatedAt   time.Time     // when it was stored, by the database's clock
	StartedAt   time.Time     // when it was claimed, by the database's clock; part of the fence, as Epoch is
	Deadline    time.Time     // by the database's clock; zero means none
	ContentType string        // of Payload, such as application/json
	Payload     []byte        // the arguments as they were stored, or as a protector opened them
	RawHeaders  []byte        // JSON; see Headers

	// Result is stored with the job if the attempt succeeds. Handlers registered with dispatcher.HandleResult set it by
	// returning a value; a handler that calls Complete sets it here first.
	Result []byte

	// DB begins the transactions of [Claimed.Tx]: the dispatcher sets it to its pool, and a handler's own test sets it
	// itself. If it is nil, Tx fails.
	DB Beginner

	attempt
}

// attempt holds what a dispatcher adds for the methods of Claimed.
type attempt = engine.Internal[engine.Attempt]

// Job is a claimed job with its typed arguments.
type Job[T any] struct {
	*Claimed
	Args T
}

// Headers returns the headers that the producer set as Options.Headers.
func (c *Claimed) Headers() map[string]string {
	var headers map[string]string
	_ = json.Unmarshal(c.RawHeaders, &headers) // outbox.enqueue may have stored values of other types; they are skipped
	return headers
}

// Complete finishes the job inside the handler's own transaction: the job is done exactly when tx commits, so effects
// in the same database happen exactly once. tx must be a transaction: through a pool or a connection, the job is
// finished on its own. On [ErrLeaseLost], roll tx back. A handler that called Complete and could not commit returns the
// error; the job is then tried again, unless the transaction has committed and only the answer was lost.
//
// At REPEATABLE READ and SERIALIZABLE, call [Claimed.Guard] first in tx. Otherwise, if the lease is extended (every 5 s
// by default) after the first statement of tx, Complete fails with a serialization failure (SQLSTATE 40001), and does
// so in every attempt that takes as long.
//
// Complete stores the handler's reports (Progress, Log) too. The handler may continue after the commit: its context
// does not end because the job is finished. If the transaction did not commit, the handler must return: losing the
// lease no longer ends its context either.
//
// Complete stores c.Result, of at most 4 MiB as a protector seals it, so set it before. This includes handlers of
// dispatcher.HandleResult: the value that they return comes too late.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		…
//		return job.Complete(ctx, tx)
//	})
func (c *Claimed) Complete(ctx context.Context, tx DB) error {
	if err := c.requireRow("complete"); err != nil {
		return err
	}
	attempt := engine.InternalOf(&c.attempt)
	result := c.Result
	if attempt.Seal != nil {
		var err error
		if result, err = attempt.Seal(ctx, result); err != nil {
			return err
		}
	}
	if n := len(result); n > engine.MaxResultBytes {
		return fmt.Errorf("complete job %s: %w", c.ID, invalid("Claimed.Result", "is %d bytes, want at most %d", n,
			engine.MaxResultBytes))
	}
	if attempt.Recorder != nil {
		if err := attempt.Recorder.Flush(ctx, tx); err != nil {
			return fmt.Errorf("complete job %s: %w", c.ID, err)
		}
	}
	// The hook that is stored with the success reads c.Result: it must not get what is to be sealed. A Complete after a
	// rollback seals the plain result again.
	plain := c.Result
	c.Result = result
	settled, err := c.settle(ctx, tx)
	c.Result = plain
	if err != nil {
		return fmt.Errorf("complete job %s: %w", c.ID, engine.ExplainSnapshot(err))
	}
	if settled == 0 {
		return fmt.Errorf("complete job %s: %w", c.ID, ErrLeaseLost)
	}
	attempt.Completed.Store(true)
	return nil
}

// settle uses the statement that stores follow-ups only if there are any.
func (c *Claimed) settle(ctx context.Context, tx DB) (settled int, err error) {
	if follow := &engine.InternalOf(&c.attempt).FollowUps; follow.Any() {
		success := engine.Success{
			ID: pgvalue.UUID(c.ID), Epoch: c.Epoch, StartedAt: pgvalue.TimeOrNull(c.StartedAt),
			Result: c.Result, FollowUps: follow.Rows(),
		}
		ids, err := engine.SettleSucceeded(ctx, tx, []engine.Success{success}, notifiesAtCommit(tx, jobsChannel))
		return len(ids), err
	}
	ids, err := sqlgen.New(tx).SettleSucceeded(ctx, sqlgen.SettleSucceededParams{
		Ids: []pgtype.UUID{pgvalue.UUID(c.ID)}, Epochs: []int64{c.Epoch},
		Starts: []pgtype.Timestamptz{pgvalue.TimeOrNull(c.StartedAt)}, Results: [][]byte{c.Result},
	})
	return len(ids), err
}

// Guard ties tx to the lease. It fails with [ErrLeaseLost] if the job no longer belongs to this attempt; otherwise no
// one else can take the job until tx ends. Use it for writes during the attempt (progress, partial results) that only
// the owner may make.
//
// tx may outlast the lease, which is extended meanwhile, and may last as long as the handler may run. Keep it short all
// the same: until it ends, operators who cancel the job wait, and the job's reports and deadline are delayed.
//
// At REPEATABLE READ and SERIALIZABLE, make Guard the first statement of tx. A later Guard fails with a serialization
// failure (SQLSTATE 40001) if the lease was extended after the first statement. Once Guard has returned nil, extensions
// no longer affect tx.
func (c *Claimed) Guard(ctx context.Context, tx DB) error {
	if err := c.requireRow("guard"); err != nil {
		return err
	}
	n, err := sqlgen.New(tx).GuardLease(ctx, sqlgen.GuardLeaseParams{
		ID: pgvalue.UUID(c.ID), Epoch: c.Epoch, StartedAt: pgvalue.TimeOrNull(c.StartedAt),
	})
	if err != nil {
		return fmt.Errorf("guard job %s: %w", c.ID, engine.ExplainSnapshot(err))
	}
	if n == 0 {
		return fmt.Errorf("guard job %s: %w", c.ID, ErrLeaseLost)
	}
	return nil
}

// LogValue returns the fields for a log line, without the payload.
func (c *Claimed) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", c.ID.String()), slog.String("kind", c.Kind), slog.String("queue", c.Queue),
		slog.Int("attempt", c.Attempt), slog.Int64("epoch", c.Epoch))
}
