package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

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

// FollowUps collects the jobs to be stored with an attempt's success. It is safe for concurrent use.
type FollowUps struct {
	// Hook makes the row of the kind's success hook; nil for none. It is set before the handler is called.
	Hook func() Row
	// Refused is the error with which Add refuses every job; nil for a job whose success can be followed. It is set
	// before the handler is called.
	Refused error

	mu    sync.Mutex
	rows  []Row
	bytes int
	ended bool
}

// Reasons why Add takes no more jobs.
var (
	ErrEnded    = errors.New("the attempt is over")
	ErrTooMany  = errors.New("too many follow-ups")
	ErrTooLarge = errors.New("too large follow-ups")
)

// Add adds a job. It returns the total bytes of all of them.
func (f *FollowUps) Add(row Row, completed bool) (bytes int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes = f.bytes + Size(&row)
	switch {
	case f.Refused != nil:
		return bytes, f.Refused
	case f.ended || completed:
		return bytes, ErrEnded
	case len(f.rows) == MaxFollowUps:
		return bytes, ErrTooMany
	case bytes > MaxFollowUpBytes:
		return bytes, ErrTooLarge
	}
	f.rows, f.bytes = append(f.rows, row), bytes
	return bytes, nil
}

// End makes Add refuse more jobs, after the handler has returned. It reports whether there is anything to store with
// the success, and its size if a hook's row has hook bytes.
func (f *FollowUps) End(hook int) (follows bool, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.Hook == nil {
		hook = 0
	}
	return f.any(), f.bytes + hook
}

// Any reports whether there is anything to store with the success.
func (f *FollowUps) Any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.any()
}

func (f *FollowUps) any() bool { return len(f.rows) > 0 || f.Hook != nil }

// Rows returns the jobs to store with the success.
func (f *FollowUps) Rows() []Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Hook == nil {
		return f.rows
	}
	return append(f.rows[:len(f.rows):len(f.rows)], f.Hook())
}

// Success is a job to settle as succeeded.
type Success struct {
	ID        pgtype.UUID
	Epoch     int64
	Result    []byte
	FollowUps []Row
}

// SettleSucceeded settles jobs as succeeded, each with its result and its follow-ups, and returns the ids of those that
// it settled. The others had lost their leases, and nothing is stored for them. If notify is set, the dispatchers are
// woken for the follow-ups when the transaction commits.
func SettleSucceeded(ctx context.Context, db DB, jobs []Success, notify bool) ([]pgtype.UUID, error) {
	var ids, parents []pgtype.UUID
	var epochs []int64
	var results [][]byte
	var follow []Row
	var all []int
	for _, j := range jobs {
		ids, epochs, results = append(ids, j.ID), append(epochs, j.Epoch), append(results, j.Result)
		for _, r := range j.FollowUps {
			parents, follow, all = append(parents, j.ID), append(follow, r), append(all, len(all))
		}
	}
	stored := Arrays(follow, all)
	p := stored.Follow()
	p.Notify, p.Ids, p.Epochs, p.Results, p.ParentIds = notify, ids, epochs, results, parents
	rows, err := sqlgen.New(db).SettleSucceededThen(ctx, p)
	if err != nil {
		return nil, err
	}
	settled := make([]pgtype.UUID, len(rows))
	for i, r := range rows {
		settled[i] = r.ID
	}
	return settled, nil
}

// Local holds what an outbox.Producer needs of the dispatcher in the same process.
type Local struct {
	wake    atomic.Pointer[func()]
	reserve atomic.Pointer[Reserve]
}

// SetWake sets the function that commits call: the commit of every transaction that the producer began, and that
// enqueued, calls wake before it returns. So a dispatcher in the same process learns of its jobs without waiting for
// the database's notification, which goes to the other processes. wake must not block. nil removes it.
func (l *Local) SetWake(wake func()) { l.wake.Store(&wake) }

// AlsoWake adds also to the function that SetWake has set.
func (l *Local) AlsoWake(also func()) {
	before := l.wake.Load()
	l.SetWake(func() {
		also()
		if before != nil && *before != nil {
			(*before)()
		}
	})
}

// Wake calls the function that SetWake has set.
func (l *Local) Wake() {
	if wake := l.wake.Load(); wake != nil && *wake != nil {
		(*wake)()
	}
}

// SetReserve sets the function that lets a commit claim its job for a dispatcher in the same process, on the same
// database, if the transaction enqueued one job that can start at once and the dispatcher has nothing else to do in its
// queue. nil removes it.
func (l *Local) SetReserve(reserve Reserve) { l.reserve.Store(&reserve) }

// Reserve calls the function that SetReserve has set.
func (l *Local) Reserve(kind, queue string, id [16]byte) Reservation {
	if reserve := l.reserve.Load(); reserve != nil && *reserve != nil {
		return (*reserve)(kind, queue, id)
	}
	return nil
}

// Reserve keeps a worker for a job that is about to be committed. It returns nil if the job is to be claimed in the
// ordinary way. It must not block, and must be safe for concurrent use.
type Reserve func(kind, queue string, id [16]byte) Reservation

// Reservation is a worker that waits for a job. The producer calls Lease and then Read, at most once each, and then
// either Committed or Failed.
type Reservation interface {
	Lease() (worker string, ttl time.Duration) // the lease with which the storing statement claims the job
	Read(answer pgx.Rows)                      // of that statement: the job as it was claimed, or nothing
	Committed() (started bool)                 // called once the COMMIT is known to have succeeded
	Failed(mayHaveCommitted bool)              // called once it has failed, or if its answer is lost
}
