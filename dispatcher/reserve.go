package dispatcher

import "sync/atomic"

// reserve says whether some of a queue's workers are reserved for jobs in the express
// channel: those of tenants that hold few. Which workers they are is fixed when the
// dispatcher starts; whether they are reserved the claim loop decides.
type reserve struct {
	state atomic.Pointer[reserveState]
}

// reserveState lasts until it has changed, when another takes its place: a worker may be
// waiting for that.
type reserveState struct {
	on      bool
	changed chan struct{}
}

// set reserves the workers or frees them. Only the claim loop calls it.
func (r *reserve) set(on bool) {
	if old := r.state.Load(); old.on != on {
		r.state.Store(&reserveState{on, make(chan struct{})})
		close(old.changed) // after the store: a worker that this wakes looks again
	}
}

// nextReserved is nextAttempt for a worker that may be reserved.
func (q *queue) nextReserved() *attempt {
	for {
		state, buffer := q.reserve.state.Load(), q.buffer
		if state.on {
			buffer = nil // never ready
		}
		select {
		case a := <-q.express: // nil when it is closed
			return a
		case a := <-buffer:
			return a
		case <-state.changed:
		}
	}
}
