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

// Attempt is kept in an outbox.Claimed: what a dispatcher, or package memory, adds
// to it for the methods that its handler calls. In one that a test made by hand it is zero.
type Attempt struct {
	Watched  bool     // somebody waits for the job's end
	Recorder Recorder // takes what the handler reports; nil keeps nothing
	// Seal has the protector that opened the payload seal the result; nil stores it as it is.
	Seal      func(ctx context.Context, result []byte) ([]byte, error)
	FollowUps FollowUps
	Context   context.Context   // the handler's, for the protector of a follow-up; nil for none
	Trace     map[string]string // the trace context of the attempt, for its follow-ups; nil for none
	// Completed says that Complete was called with success; whether its transaction
	// committed only the database knows.
	Completed atomic.Bool
}

// Recorder stores what an attempt reports, fenced by its epoch. Its methods may be called from
// several goroutines.
type Recorder interface {
	Progress(current, total int64, message string) error
	Log(level slog.Level, message string) error
	SaveCheckpoint(ctx context.Context, checkpoint []byte) error
	LoadCheckpoint(ctx context.Context) (checkpoint []byte, err error) // nil for none
	// Flush stores through tx what is not stored yet. It stores nothing else if there
	// is nothing.
	Flush(ctx context.Context, tx DB) error
}

// ExplainSnapshot adds what to do to a serialization failure of a statement that needs the job's row. Where the
// transaction takes as long each time, each attempt would fail.
func ExplainSnapshot(err error) error {
	if pgsession.State(err) == pgsession.SerializationFailure {
		return fmt.Errorf("%w (the job's lease may have been extended after the transaction's first statement: call Claimed.Guard "+
			"before anything else in it, see docs/guides/effects.md)", err)
	}
	return err
}

// ErrNotFound is that of packages await and operator.
var ErrNotFound = errors.New("job not found")

// ErrNotStored is memory.ErrNotStored.
var ErrNotStored = errors.New("the job has no row in the database")

// FollowUps is what an attempt wants to be stored with its success. It is safe for concurrent use.
type FollowUps struct {
	// Hook makes the row of the kind's success hook; nil for none. It is set before the handler
	// is called.
	Hook func() Row
	// Refused is why Add takes none; nil for a job whose success can be followed. It is set before the handler is
	// called.
	Refused error

	mu    sync.Mutex
	rows  []Row
	bytes int
	ended bool
}

// Why Add takes no more.
var (
	ErrEnded    = errors.New("the attempt is over")
	ErrTooMany  = errors.New("too many follow-ups")
	ErrTooLarge = errors.New("too large follow-ups")
)

// Add adds a job. It returns the bytes of all of them.
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

// End ends the time for Add when the handler has returned, and tells whether there is anything to
// follow, and how large it is if a hook's row has so many bytes.
func (f *FollowUps) End(hook int) (follows bool, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.Hook == nil {
		hook = 0
	}
	return f.any(), f.bytes + hook
}

// Any reports whether there is anything to follow.
func (f *FollowUps) Any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.any()
}

func (f *FollowUps) any() bool { return len(f.rows) > 0 || f.Hook != nil }

// Rows is what is to be stored with the success.
func (f *FollowUps) Rows() []Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Hook == nil {
		return f.rows
	}
	return append(f.rows[:len(f.rows):len(f.rows)], f.Hook())
}

// Success is a job that is to be settled as succeeded.
type Success struct {
	ID        pgtype.UUID
	Epoch     int64
	Result    []byte
	FollowUps []Row
}

// SettleSucceeded settles jobs as succeeded, each with its result and its follow-ups, and returns
// the ids of those that it settled: the others had lost their leases, and nothing of them is
// stored. notify wakes the dispatchers for the follow-ups, when the transaction commits.
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

// Local is kept in an outbox.Producer: the dispatcher of the same process.
type Local struct {
	wake    atomic.Pointer[func()]
	reserve atomic.Pointer[Reserve]
}

// SetWake has the commit of every transaction that the producer began, and that enqueued, call
// wake before it returns: a dispatcher in the same process learns of its jobs without the way
// through the database, on which the others are notified. wake must not block. nil takes it away.
func (l *Local) SetWake(wake func()) { l.wake.Store(&wake) }

// AlsoWake adds to what SetWake was given.
func (l *Local) AlsoWake(also func()) {
	before := l.wake.Load()
	l.SetWake(func() {
		also()
		if before != nil && *before != nil {
			(*before)()
		}
	})
}

// Wake calls what SetWake was given.
func (l *Local) Wake() {
	if wake := l.wake.Load(); wake != nil && *wake != nil {
		(*wake)()
	}
}

// SetReserve has transactions that the producer began claim their job for a dispatcher in the same
// process, of the same database, if it is one job that can start at once and the dispatcher has
// nothing else to do in its queue. nil takes it away.
func (l *Local) SetReserve(reserve Reserve) { l.reserve.Store(&reserve) }

// Reserve calls what SetReserve was given.
func (l *Local) Reserve(kind, queue string, id [16]byte) Reservation {
	if reserve := l.reserve.Load(); reserve != nil && *reserve != nil {
		return (*reserve)(kind, queue, id)
	}
	return nil
}

// Reserve keeps a worker for a job that is about to be committed. It returns nil if
// the job is to be claimed like any. It must not block, and is safe for concurrent use.
type Reserve func(kind, queue string, id [16]byte) Reservation

// Reservation is a worker that waits for a job. Lease and Read are called in turn, at
// most once each, and then either Committed or Failed.
type Reservation interface {
	Lease() (worker string, ttl time.Duration) // what the statement that stores the job claims it with
	Read(answer pgx.Rows)                      // of that statement: the job as it was claimed, or nothing
	Committed() (started bool)                 // called once the COMMIT is known to have succeeded
	Failed(mayHaveCommitted bool)              // called once it has failed, or if its answer is lost
}
