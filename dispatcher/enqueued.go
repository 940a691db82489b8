package dispatcher

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Reserve keeps a worker for a job that a producer in the same program is about to
// commit, by itself: the commit then claims it, and it starts when the commit is known,
// without a wake-up and a claim's own way to the disk and back. It returns nil if the job
// is to be claimed like any: while the queue has something in hand, one that was
// reserved for is under way, or the kind is not handled here, or in batches. It never
// blocks; whoever gets a reservation has to end it. See [outbox.Producer.AlsoClaim].
//
//	producer     Reserve, send [INSERT claimed, COMMIT]    answer: Committed
//	dispatcher   a place less to claim for                  held, to a worker
//	crash        neither job nor claim, or both: then the lease lapses, as after any claim
//	no answer    Failed: returnOrphans gives the job back, if it was committed
func (d *Dispatcher) Reserve(kind, queue string, id outbox.ID) outbox.Reservation {
	if !d.phase.isClaiming() {
		return nil
	}
	q, r := d.queueNamed(queue), d.routes[kind]
	if q == nil || r == nil || r.many != nil || q.limits.on.Load() || q.inHand.Load() != 0 || q.outages.some.Load() != 0 || !q.reserved.take(id) {
		return nil
	}
	q.inHand.Add(1)
	return &reservation{queue: q, id: id}
}

// reserved is a queue's part of it: one job at a time. So a program with many commits at
// once has its jobs claimed by the hundred, which costs less.
type reserved struct {
	mu     sync.Mutex
	id     outbox.ID // of the job under way; zero: none
	ended  chan struct{}
	asking bool      // returnOrphans is under way: what it reads must not change
	closed bool      // no other begins
	gone   bool      // nor does one start that is under way
	doubt  time.Time // until then one without an answer may yet be committed
}

func (r *reserved) take(id outbox.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.asking || !r.id.IsZero() || time.Now().Before(r.doubt) {
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
	r.closed = true
	busy, ended := !r.id.IsZero(), r.ended
	r.mu.Unlock()
	if busy {
		select {
		case <-ended:
		case <-time.After(statementTimeout):
		}
	}
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
}

// ask begins a look for jobs that are held without being known, and returns those
// that are: a job that was reserved for is one, committed or not. Until the look has
// ended, the next is not.
func (q *queue) ask() (known []pgtype.UUID) {
	r := &q.reserved
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = true
	known = q.leases.ids()
	if !r.id.IsZero() {
		known = append(known, pgID(r.id))
	}
	return known
}

func (q *queue) asked() {
	q.reserved.mu.Lock()
	defer q.reserved.mu.Unlock()
	q.reserved.asking = false
}

// reservation is the place of one job. Its methods are called by one goroutine.
type reservation struct {
	queue   *queue
	id      outbox.ID
	sent    time.Time
	claimed *attempt
	lost    bool // there was an answer, and it could not be read
}

// Lease returns what the job is claimed with.
func (r *reservation) Lease() (worker string, ttl time.Duration) {
	r.sent = time.Now()
	return r.queue.worker, r.queue.leaseTTL
}

// Read takes the statement's answer, which has the columns of ClaimJobs.
func (r *reservation) Read(rows pgx.Rows) {
	h := r.queue.readClaim(rows, 1, r.sent, nil)
	r.lost = h.err != nil
	if len(h.claimed) == 1 && !r.lost {
		r.claimed = h.claimed[0]
	}
}

// Committed ends the reservation when the transaction is committed, and reports
// whether the job starts.
func (r *reservation) Committed() bool {
	q := r.queue
	q.reserved.mu.Lock()
	defer q.reserved.mu.Unlock()
	defer q.reserved.done()
	switch {
	case r.lost:
		q.release(true)
		return false
	case r.claimed == nil:
		q.release(false)
		return false
	case q.reserved.gone:
		return true // nobody has to be woken: it is this process's until its lease lapses
	}
	a, now := r.claimed, time.Now()
	q.noteSize(int64(len(a.job.Payload)))
	q.metrics.claimBatch.Observe(1)
	q.leases.add([]*attempt{a})
	q.standing.noteOpen(a.claimed, now)
	a.arrived = now
	a.route.counts.claimed.Inc()
	q.buffer <- a // never blocks: there is a place for it
	return true
}

// Failed ends the reservation when the transaction is not committed, or may be.
func (r *reservation) Failed(mayHaveCommitted bool) {
	q := r.queue
	q.reserved.mu.Lock()
	defer q.reserved.mu.Unlock()
	defer q.reserved.done()
	q.release(mayHaveCommitted)
}

// release gives the place back; reserved.mu is held. A claim loop that had no room for it
// looks again.
func (q *queue) release(doubtful bool) {
	if doubtful {
		q.reserved.doubt = time.Now().Add(uncertainFor)
	}
	q.inHand.Add(-1)
	if q.hungry.CompareAndSwap(true, false) {
		q.roomMade()
	}
}
