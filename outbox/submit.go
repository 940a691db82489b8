package outbox

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// DepthPolicy selects what happens to a job when Options.Key.MaxQueued jobs of its key are already waiting. With "" it
// is not stored.
type DepthPolicy string

const (
	// CoalesceFull does not store the job either: the newest waiting job of the same kind stands for this request, too.
	// That job does not start before this transaction has ended, so its handler sees the data committed with the
	// request. It keeps its own start time, which may be later than Options.RunAt. If all waiting jobs are of other
	// kinds, the request is rejected.
	CoalesceFull DepthPolicy = "coalesce"
	// ReplaceOldest closes the job of the same kind that has waited longest as [Skipped] and stores the new one. A
	// running job is never replaced. If all waiting jobs are of other kinds, the request is rejected.
	ReplaceOldest DepthPolicy = "replace-oldest"
)

// Submitted is the decision of [Submit]: the request's own job was stored, another waiting job stands for it, or, with
// a zero ID, the key is full and the request was rejected.
type Submitted struct {
	Stored   bool // the request's own job was stored
	ID       ID   // the request's own job, the one that stands for it, or the idempotency key's first; zero if rejected
	Replaced ID   // the job that was closed to make room; zero if none was
	Queued   int  // how many jobs of the key waited before
}

// A QueueFullError is returned by [Enqueue] if as many jobs of a key wait as the request allows. Nothing was stored,
// and the caller's transaction is still usable.
type QueueFullError struct {
	Queue, Key string
	Queued     int
	MaxQueued  int
}

// Error states how many jobs wait.
func (e *QueueFullError) Error() string {
	return fmt.Sprintf("key %q of queue %s has %d jobs waiting, want fewer than %d", e.Key, e.Queue, e.Queued,
		e.MaxQueued)
}

// Submit stores a job if fewer than opts.Key.MaxQueued jobs of its key wait; otherwise it applies opts.Key.WhenFull. It
// does not count jobs that run, are held or wait for a person, and does not wait for transactions that store jobs with
// MaxQueued = 0.
//
// The count is exact however many producers submit at once, because they wait for one another: a producer that submits
// to a key holds a lock on it until its transaction ends. So submit late in the transaction, and to several keys in the
// same order everywhere. No worker and no plain Enqueue waits for that lock. The transaction must be READ COMMITTED;
// otherwise Submit returns an [*InvalidError].
//
// Submit needs the rights to read and delete jobs, which the role outbox_producer lacks. With MaxQueued = 0 it stores
// the job as [Enqueue] does.
func Submit(ctx context.Context, db DB, args Args, opts Options) (Submitted, error) {
	opts.fillFrom(args)
	return submit(ctx, db, args, &opts, notifiesAtCommit(db, jobsChannel))
}

// submit stores a job, in a span if the program traces; opts already contain the defaults of args.
func submit(ctx context.Context, db DB, args Args, opts *Options, notify bool) (done Submitted, err error) {
	if t := engine.Tracing(); t != nil && args != nil {
		var span engine.Span
		ctx, span = traceEnqueue(ctx, t, args, opts)
		defer func() { endTrace(span, done.ID, err) }()
	}
	return storeJob(ctx, db, args, opts, notify)
}

// storeIfRoom stores a job if fewer than Key.MaxQueued wait, and otherwise applies Key.WhenFull.
func storeIfRoom(ctx context.Context, db DB, job row, opts *Options) (done Submitted, err error) {
	err = atomically(ctx, db, "", func(db DB) (err error) {
		q := sqlgen.New(db)
		if done, err = makeRoom(ctx, q, &job, opts); err == nil && done.Stored {
			err = q.EnqueueJob(ctx, job)
		}
		return err
	})
	if err != nil {
		return Submitted{}, fmt.Errorf("submit %s: %w", job.Kind, explain(err))
	}
	return done, nil
}

// makeRoom decides what happens to a job, and makes room for it if it is to be stored.
func makeRoom(ctx context.Context, q *sqlgen.Queries, job *row, opts *Options) (Submitted, error) {
	room, err := q.MakeRoom(ctx, sqlgen.MakeRoomParams{
		TenantID: job.TenantID, Queue: job.Queue, Key: opts.Key.Name, Kind: job.Kind,
		MaxQueued: int32(opts.Key.MaxQueued), WhenFull: string(opts.Key.WhenFull),
		Notify: job.Notify,
	})
	if err != nil {
		return Submitted{}, err
	}
	done := Submitted{Queued: int(room.Queued)}
	switch room.Verdict {
	case "accepted", "replaced":
		done.Stored, done.ID, done.Replaced = true, ID(job.ID.Bytes), ID(room.Job.Bytes)
		return done, nil
	case "coalesced":
		done.ID = ID(room.Job.Bytes)
		return done, nil
	case "rejected":
		return done, nil
	}
	return Submitted{}, invalid("Options.Key.MaxQueued",
		"needs a READ COMMITTED transaction: another's snapshot is too old to count")
}
