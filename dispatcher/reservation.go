package dispatcher

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// reserved tracks the one job of a queue that a producer in the same program is about to commit, and that this commit
// claims: it needs no wake-up, and no round trip and disk flush of a claim. There is only one at a time, so that a
// program with many concurrent commits has its jobs claimed by the hundred, which costs less.
// docs/adr/0016-claimed-where-enqueued.md lists what may go wrong, and what prevents it.
//
// It is the [engine.Reservation] of that job; the goroutine that commits calls these methods.
type reserved struct {
	*common
	capacity *capacity
	workers  *workers
	leases   *lease.Keeper
	claims   *claims

	mu           sync.Mutex
	id           outbox.ID // of the job under way; zero if there is none
	ended        chan struct{}
	asking       bool // returnOrphans is under way: what it reads must not change
	state        reserving
	orphansUntil time.Time // until then this process may hold jobs of the queue that it does not know of

	// Only the goroutine that commits the job uses the following fields.
	sent   time.Time
	answer *claimBatch // nil if there was none
}

// reserving says which reservations may go on.
type reserving int

const (
	anyBegins  reserving = iota
	noneBegins           // a job that is reserved may still start
	noneStarts           // no reservation begins, and a job that is reserved but has not started does not start
)

// reserve is Dispatcher.reserve for a kind that this process handles, and not in batches, and that is available.
func (r *reserved) reserve(id outbox.ID) bool {
	if r.capacity.limits.Known() || r.capacity.inHand.Load() != 0 || r.capacity.refused.Load() != 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != anyBegins || r.asking || !r.id.IsZero() {
		return false
	}
	r.id, r.ended = id, make(chan struct{})
	r.capacity.inHand.Add(1)
	return true
}

// done ends the reservation; mu is held.
func (r *reserved) done() {
	r.id, r.answer = outbox.ID{}, nil
	close(r.ended)
}

// noteUnanswered notes that a claim has had no answer: it may still commit.
func (r *reserved) noteUnanswered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orphansUntil = time.Now().Add(uncertainFor)
}

// mayHaveOrphans reports whether this process may hold jobs of the queue that it does not know of.
func (r *reserved) mayHaveOrphans(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.orphansUntil)
}

// close waits for the job under way, for at most statementTimeout. If its commit takes longer, the job does not start:
// its lease lapses.
func (r *reserved) close() {
	r.mu.Lock()
	r.state = noneBegins
	busy, ended := !r.id.IsZero(), r.ended
	r.mu.Unlock()
	if busy {
		select {
		case <-ended:
		case <-time.After(statementTimeout):
		}
	}
	r.mu.Lock()
	r.state = noneStarts
	r.mu.Unlock()
}

// ask begins a look for orphans, and returns the ids of the jobs that are not orphans: a reserved job is not one,
// whether it is committed or not.
func (r *reserved) ask() (known []pgtype.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = true
	known = r.leases.IDs()
	if !r.id.IsZero() {
		known = append(known, pgvalue.UUID(r.id))
	}
	return known
}

func (r *reserved) asked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
}

// Lease returns the worker and the duration of the lease with which the commit claims the job.
func (r *reserved) Lease() (worker string, ttl time.Duration) {
	r.sent = time.Now()
	return r.worker, r.leaseTTL
}

// Read reads the statement's answer, which has the columns of ClaimJobs.
func (r *reserved) Read(rows pgx.Rows) { r.answer = r.claims.read(rows, claimRequest{room: 1}, r.sent) }

// Committed ends the reservation after the transaction has committed, and reports whether the job starts.
func (r *reserved) Committed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.done()
	unread := r.answer != nil && r.answer.err != nil
	if unread || r.answer == nil || len(r.answer.claimed) == 0 {
		r.release(unread)
		return false
	}
	if r.state == noneStarts {
		return true // nobody has to be woken: this process holds it until its lease lapses
	}
	a := r.answer.claimed[0]
	r.capacity.noteSize(int64(len(a.job.Payload)))
	r.metrics.claimBatch.Observe(1)
	r.leases.Add(leasesOf([]*attempt{a}))
	a.arrived = time.Now()
	a.route.counts.claimed.Inc()
	r.workers.buffer.Put(a, false)
	return true
}

// Failed ends the reservation when the transaction has failed, or when its result is unknown.
func (r *reserved) Failed(mayHaveCommitted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.done()
	r.release(mayHaveCommitted)
}

// release gives the place back; mu is held. It wakes a claim loop that had no room because of it.
func (r *reserved) release(unanswered bool) {
	if unanswered {
		r.orphansUntil = time.Now().Add(uncertainFor)
	}
	r.capacity.finished(notCalled)
}
