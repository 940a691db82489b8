package dispatcher

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// reserved is the job of a queue that a producer in the same program is about to commit, and whose commit claims it
// (Dispatcher.Reserve). It is one at a time: so a program with many commits at
// once has its jobs claimed by the hundred, which costs less.
//
//	producer     Reserve, send [INSERT claimed, COMMIT]    answer: Committed
//	dispatcher   a place less to claim for                  held, to a worker
//	crash        neither job nor claim, or both: then the lease lapses, as after any claim
//	no answer    Failed: returnOrphans gives the job back, if it was committed
type reserved struct {
	*process
	capacity *capacity
	workers  *workers
	leases   *leases
	reader   *claimReader

	mu     sync.Mutex
	id     outbox.ID // of the job under way; zero: none
	ended  chan struct{}
	asking bool // returnOrphans is under way: what it reads must not change
	state  reserving
	doubt  time.Time // until then one without an answer may yet be committed
}

// reserving is what may yet be reserved.
type reserving int

const (
	open   reserving = iota
	closed           // no other begins
	gone             // nor does one start that is under way
)

// reserve keeps a place for the job; nil if it is to be claimed like any. The kind is handled here, and not in batches.
func (r *reserved) reserve(id outbox.ID) *reservation {
	if r.capacity.limited.Load() || r.capacity.inHand.Load() != 0 || r.workers.outages.some.Load() != 0 || !r.take(id) {
		return nil
	}
	r.capacity.inHand.Add(1)
	return &reservation{of: r, id: id}
}

func (r *reserved) take(id outbox.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != open || r.asking || !r.id.IsZero() || time.Now().Before(r.doubt) {
		return false
	}
	r.id, r.ended = id, make(chan struct{})
	return true
}

// done ends what take has begun; mu is held.
func (r *reserved) done() {
	r.id = outbox.ID{}
	close(r.ended)
}

func (r *reserved) inDoubt(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.doubt)
}

// close waits for the job under way, as long as for a statement. If its commit takes
// longer, the job is not started: its lease lapses.
func (r *reserved) close() {
	r.mu.Lock()
	r.state = closed
	busy, ended := !r.id.IsZero(), r.ended
	r.mu.Unlock()
	if busy {
		select {
		case <-ended:
		case <-time.After(statementTimeout):
		}
	}
	r.mu.Lock()
	r.state = gone
	r.mu.Unlock()
}

// ask begins a look for jobs that are held without being known, and returns those
// that are: a job that was reserved for is one, committed or not. Until the look has
// ended, the next is not.
func (r *reserved) ask() (known []pgtype.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = true
	known = r.leases.ids()
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

// reservation is the place of one job. Its methods are called by one goroutine.
type reservation struct {
	of      *reserved
	id      outbox.ID
	sent    time.Time
	claimed *attempt
	lost    bool // there was an answer, and it could not be read
}

// Lease returns what the job is claimed with.
func (r *reservation) Lease() (worker string, ttl time.Duration) {
	r.sent = time.Now()
	return r.of.worker, r.of.leaseTTL
}

// Read takes the statement's answer, which has the columns of ClaimJobs.
func (r *reservation) Read(rows pgx.Rows) {
	h := r.of.reader.read(rows, 1, r.sent, false)
	r.lost = h.err != nil
	if len(h.claimed) == 1 && !r.lost {
		r.claimed = h.claimed[0]
	}
}

// Committed ends the reservation when the transaction is committed, and reports
// whether the job starts.
func (r *reservation) Committed() bool {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	defer of.done()
	switch {
	case r.lost:
		of.release(true)
		return false
	case r.claimed == nil:
		of.release(false)
		return false
	case of.state == gone:
		return true // nobody has to be woken: it is this process's until its lease lapses
	}
	a, now := r.claimed, time.Now()
	of.capacity.noteSize(int64(len(a.job.Payload)))
	of.metrics.claimBatch.Observe(1)
	of.leases.add([]*attempt{a})
	of.workers.pause.noteOpen(a.claimed, now)
	a.arrived = now
	a.route.counts.claimed.Inc()
	of.workers.deliver(a)
	return true
}

// Failed ends the reservation when the transaction is not committed, or may be.
func (r *reservation) Failed(mayHaveCommitted bool) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	defer of.done()
	of.release(mayHaveCommitted)
}

// release gives the place back; mu is held. A claim loop that had no room for it
// looks again.
func (r *reserved) release(doubtful bool) {
	if doubtful {
		r.doubt = time.Now().Add(uncertainFor)
	}
	r.capacity.inHand.Add(-1)
	if r.capacity.hungry.CompareAndSwap(true, false) {
		r.capacity.roomMade()
	}
}
