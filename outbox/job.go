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

// Claimed is a job as its worker holds it: what is stored, and the lease. Its
// methods are fenced: they fail with [ErrLeaseLost] once another worker may own
// the job. A Claimed belongs to one attempt; its fields are not to be changed.
type Claimed struct {
	ID          ID            // of the job, the same in each attempt
	Tenant      ID            // whose job it is; RootTenant if the producer named none
	Queue       string        // where it waited
	Kind        string        // what is to be done
	Priority    int           // higher is more urgent
	Attempt     int           // from 1; for people. A snooze lowers it again
	MaxAttempts int           // the attempt of this number is the last
	LostLeases  int           // how many workers died or stalled with this job
	Epoch       int64         // the fencing token, for whatever else the handler writes to. 0 in package memory
	Key         string        // Options.Key.Name; "" for a job without a key
	Worker      string        // who holds the lease
	Timeout     time.Duration // of this job; 0 leaves it to its kind
	Backoff     Backoff       // of this job; nil leaves it to its kind
	RunAt       time.Time     // when it became due, by the database's clock
	CreatedAt   time.Time     // when it was stored, by the database's clock
	StartedAt   time.Time     // when it was claimed, by the database's clock
	Deadline    time.Time     // by the database's clock; zero: it has none
	ContentType string        // of Payload, such as application/json
	Payload     []byte        // the arguments as they were stored, or as a protector opened them
	RawHeaders  []byte        // JSON; see Headers

	// Result is what will be stored with the job if the attempt succeeds. Handlers
	// registered with dispatcher.HandleResult set it by returning a value; before
	// Complete they set it here.
	Result []byte

	// DB is what [Claimed.Tx] begins its transactions on: the pool that the dispatcher was given.
	// A handler's own test sets it; nil has Tx fail.
	DB Beginner

	attempt
}

// attempt is what a dispatcher adds for the methods of Claimed.
type attempt = engine.Seam[engine.Attempt]

// Job is a claimed job with its typed arguments.
type Job[T any] struct {
	*Claimed
	Args T
}

// Headers returns what the producer gave as Options.Headers.
func (c *Claimed) Headers() map[string]string {
	var headers map[string]string
	_ = json.Unmarshal(c.RawHeaders, &headers) // stored by outbox.enqueue with other types: not for us
	return headers
}

// Complete finishes the job inside the handler's own transaction: it is done
// exactly when tx commits, so effects in the same database happen exactly once.
// After [ErrLeaseLost] roll tx back. A handler that called Complete and could not
// commit returns the error; it is then tried again, unless the transaction has
// committed and only its answer was lost.
//
// At REPEATABLE READ and SERIALIZABLE call [Claimed.Guard] first in tx. Otherwise an
// extension of the lease (every 5 s by default) after the first statement of tx makes
// Complete fail with a serialization failure (SQLSTATE 40001), in each attempt that
// takes as long.
//
// What the handler has reported (Progress, Log) is stored with it. The handler may go on after
// the commit: that its job is over does not end its context. Where the transaction did not
// commit, the handler returns: a lease that is lost does not end its context any more.
//
// It stores c.Result, of at most 4 MiB: set it before. A handler of
// dispatcher.HandleResult has to, too: the value that it returns comes too late.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		…
//		return job.Complete(ctx, tx)
//	})
func (c *Claimed) Complete(ctx context.Context, tx DB) error {
	if n := len(c.Result); n > engine.MaxResultBytes {
		return fmt.Errorf("complete job %s: %w", c.ID, invalid("Claimed.Result", "is %d bytes, want at most %d", n, engine.MaxResultBytes))
	}
	if err := c.stored("complete"); err != nil {
		return err
	}
	attempt := engine.Of(&c.attempt)
	if attempt.Recorder != nil {
		if err := attempt.Recorder.Flush(ctx, tx); err != nil {
			return fmt.Errorf("complete job %s: %w", c.ID, err)
		}
	}
	if attempt.Seal != nil {
		sealed, err := attempt.Seal(ctx, c.Result)
		if err != nil {
			return err
		}
		c.Result = sealed
	}
	settled, err := c.settle(ctx, tx)
	if err != nil {
		return fmt.Errorf("complete job %s: %w", c.ID, engine.ExplainSnapshot(err))
	}
	if settled == 0 {
		return fmt.Errorf("complete job %s: %w", c.ID, ErrLeaseLost)
	}
	attempt.Completed.Store(true)
	return nil
}

// settle goes by the statement that knows of follow-ups only if there are any.
func (c *Claimed) settle(ctx context.Context, tx DB) (settled int, err error) {
	if follow := &engine.Of(&c.attempt).FollowUps; follow.Any() {
		success := engine.Success{ID: pgvalue.UUID(c.ID), Epoch: c.Epoch, Result: c.Result, FollowUps: follow.Rows()}
		ids, err := engine.SettleSucceeded(ctx, tx, []engine.Success{success}, notifiesAtCommit(tx, jobsChannel))
		return len(ids), err
	}
	ids, err := sqlgen.New(tx).SettleSucceeded(ctx, sqlgen.SettleSucceededParams{
		Ids: []pgtype.UUID{pgvalue.UUID(c.ID)}, Epochs: []int64{c.Epoch}, Results: [][]byte{c.Result},
	})
	return len(ids), err
}

// Guard ties tx to the lease: it fails with [ErrLeaseLost] if the job is no
// longer this attempt's, and until tx ends nobody else can take the job. Use it
// for writes on the way (progress, partial results) that only the owner may make.
//
// tx may outlast the lease, which is extended meanwhile, and may last for as long as the
// handler may run. Operators who cancel the job wait for tx, and its reports and the
// job's deadline are late by it: make it short all the same.
//
// At REPEATABLE READ and SERIALIZABLE make it the first statement of tx. Later it
// fails with a serialization failure (SQLSTATE 40001) if the lease was extended after
// the first one. Once it has returned nil, extensions do not concern tx.
func (c *Claimed) Guard(ctx context.Context, tx DB) error {
	if err := c.stored("guard"); err != nil {
		return err
	}
	n, err := sqlgen.New(tx).GuardLease(ctx, pgvalue.UUID(c.ID), c.Epoch)
	if err != nil {
		return fmt.Errorf("guard job %s: %w", c.ID, engine.ExplainSnapshot(err))
	}
	if n == 0 {
		return fmt.Errorf("guard job %s: %w", c.ID, ErrLeaseLost)
	}
	return nil
}

// LogValue leaves the payload out.
func (c *Claimed) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", c.ID.String()), slog.String("kind", c.Kind), slog.String("queue", c.Queue),
		slog.Int("attempt", c.Attempt), slog.Int64("epoch", c.Epoch))
}
