package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// DB is outbox.DB.
type DB = sqlgen.DBTX

// Attempt holds what a dispatcher, or package memory, adds to an outbox.Claimed for the methods that its handler calls.
// In a Claimed that a test made by hand it is zero.
type Attempt struct {
	Watched  bool     // some caller waits for the job's end
	Recorder Recorder // takes the handler's reports; nil drops them
	// Seal seals the result with the protector that opened the payload; nil stores the result as it is.
	Seal      func(ctx context.Context, result []byte) ([]byte, error)
	FollowUps FollowUps
	Context   context.Context   // the handler's context, for the protector of a follow-up; nil for none
	Trace     map[string]string // the trace context of the attempt, for its follow-ups; nil for none
	// Completed reports that Complete was called with success. Only the database knows whether its transaction
	// committed.
	Completed atomic.Bool
}

// Recorder stores the reports of an attempt, fenced by its epoch. Its methods may be called from several goroutines.
type Recorder interface {
	Progress(current, total int64, message string) error
	Log(level slog.Level, message string) error
	SaveCheckpoint(ctx context.Context, checkpoint []byte) error
	LoadCheckpoint(ctx context.Context) (checkpoint []byte, err error) // nil if there is none
	// Flush stores the unstored reports through tx. If there are none it stores nothing.
	Flush(ctx context.Context, tx DB) error
}

// ExplainSnapshot adds advice to a serialization failure of a statement that needs the job's row. If the transaction
// takes as long each time, every attempt would fail.
func ExplainSnapshot(err error) error {
	if pgsession.State(err) == pgsession.SerializationFailure {
		return fmt.Errorf("%w (the job's lease may have been extended after the transaction's first statement: call Claimed.Guard "+
			"before anything else in it, see docs/guides/effects.md)", err)
	}
	return err
}

// ErrNotFound is the ErrNotFound of packages await and operator.
var ErrNotFound = errors.New("job not found")

// ErrNotStored is memory.ErrNotStored.
var ErrNotStored = errors.New("the job has no row in the database")
