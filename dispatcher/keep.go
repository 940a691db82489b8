package dispatcher

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// keptPart is the part of a queue's slots, one in so many, that is kept for jobs
// that go ahead: those of tenants that wait for little. Without it a tenant whose
// jobs take a minute would have another's wait for as long as it takes one of
// them to end, and jobs that all take the same time would end together.
const keptPart = 16

// keptSlots are the slots that no job from the buffer gets while jobs of more than
// the root tenant are about. Which workers they belong to is fixed when the
// dispatcher starts; how many of them are kept is all or none, as the claim loop
// decides.
type keptSlots struct {
	workers int                  // how many there are
	gate    atomic.Pointer[gate] // between them and the buffer
	inHand  atomic.Int64         // jobs that go ahead, claimed and not finished
}

// gate is open or shut until it has changed, when another takes its place: a worker
// may be waiting at it.
type gate struct {
	shut    bool
	changed chan struct{}
}

func newGate(shut bool) *gate { return &gate{shut, make(chan struct{})} }

// keep shuts the gate or opens it. Only the claim loop calls it.
//
// A queue with limits is not shared by slots: its claims take no more than what
// may start at once, and none ahead of that.
func (q *queue) keep() {
	old, shut := q.kept.gate.Load(), q.sharesSlots() && q.kept.workers > 0 && !q.limits.on.Load()
	if old.shut != shut {
		q.kept.gate.Store(newGate(shut))
		close(old.changed) // after the store: whoever this wakes looks again
	}
}

// sharesSlots reports whether several tenants have jobs in the queue, or had lately.
func (q *queue) sharesSlots() bool { return q.shared.on || q.keyed.turns.on(time.Now()) }

// free is how many of the kept slots are neither taken nor spoken for.
func (k *keptSlots) free() int {
	if !k.gate.Load().shut {
		return 0
	}
	return max(k.workers-int(k.inHand.Load()), 0)
}

// leave notes that a job that went ahead has left its slot, or gives it up. Where the
// claim loop waits for room it may have left others out for which no slot was kept.
func (q *queue) leave(a *attempt) {
	if !a.ahead {
		return
	}
	q.kept.inHand.Add(-1)
	if q.hungry.Load() {
		q.poke()
	}
}

// lookAhead is what a drain does while there is no room for anything but what goes ahead.
// It returns how long to sleep unless somebody makes room or wakes the queue.
func (q *queue) lookAhead(ctx context.Context) (time.Duration, error) {
	if !q.shared.on && !q.keyed.on || len(q.claimable()) == 0 || q.limits.on.Load() {
		return max(q.keyed.turns.rest(q.pollInterval(), time.Now()), surveyInterval), nil
	}
	n, err := q.claimAhead(ctx)
	q.claimed += n
	if err != nil {
		return 0, err
	}
	if q.kept.free() == 0 { // who leaves one says so
		sleep, _ := q.surveyShared(time.Now())
		return max(q.keyed.turns.rest(sleep, time.Now()), surveyInterval), nil
	}
	// Others may look long for the first job of a priority, of a tenant or with a key that
	// is new to them: they have no slot for it.
	if !q.scan.surveyDue() {
		return surveyInterval, nil
	}
	next, more, err := q.survey(ctx)
	if err == nil && more {
		n, err = q.claimAhead(ctx)
		q.claimed += n
	}
	// What is due now and does not go ahead waits for room, and so does a wide scan that is
	// made for nothing else.
	sleep, _ := q.surveyShared(time.Now())
	if q.shared.on && !q.shared.filled.has(outbox.RootTenant) {
		sleep = min(sleep, next)
	}
	if b := &q.shared.lanes; b.open() && !b.crowded { // the lap goes on
		sleep = 0
	}
	return max(q.keyed.turns.rest(sleep, time.Now()), surveyInterval), err
}

// keepsForNobody reports whether slots are still kept though tenants share the queue no
// longer.
func (q *queue) keepsForNobody() bool { return q.kept.gate.Load().shut && !q.sharesSlots() }

// workKept is work in a slot that may be kept.
func (q *queue) workKept() { q.workOn(q.nextKept, q.workKept) }

// nextKept is nextAttempt for a slot that may be kept.
func (q *queue) nextKept() *attempt {
	for {
		gate, buffer := q.kept.gate.Load(), q.buffer
		if gate.shut {
			buffer = nil // never ready
		}
		select {
		case a := <-q.ahead: // nil when it is closed
			return a
		case a := <-buffer:
			return a
		case <-gate.changed:
		}
	}
}
