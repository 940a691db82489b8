package engine

import (
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Local holds what an outbox.Producer needs of the dispatcher in the same process.
type Local struct {
	wake    atomic.Pointer[func()]
	reserve atomic.Pointer[Reserve]
}

// SetWake sets the function that a producer's commit calls, after the commit and before Commit returns, if the
// transaction enqueued jobs. So a dispatcher in the same process learns of its jobs without waiting for the database's
// notification, which goes to the other processes. wake must not block; nil removes it.
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
