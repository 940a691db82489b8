package dispatcher

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/outcome"
)

// staleAfter is how long a job waits in the buffer before it goes back.
const staleAfter = 2 * time.Second

// workers are what runs the jobs of a queue, one at a time each, and what is claimed waits for them here.
type workers struct {
	*process
	capacity *capacity
	pause    *pauseCheck
	outages  *outages
	ended    chan<- *attempt // to be settled
	running  *sync.WaitGroup

	buffer      chan *attempt // claimed, not started
	express     chan *attempt // those of them whose tenant holds few: they do not wait behind others' jobs
	expressOnly expressOnly   // for what is in express
}

// newWorkers makes the channels large enough for all that can be claimed, and for so many jobs more.
func newWorkers(p *process, c *capacity, pause *pauseCheck, outages *outages, ended chan<- *attempt, running *sync.WaitGroup, more int) *workers {
	w := &workers{
		process: p, capacity: c, pause: pause, outages: outages, ended: ended, running: running,
		buffer:  make(chan *attempt, c.concurrency+maxPrefetch+more+1), // one that a commit has claimed
		express: make(chan *attempt, c.concurrency+maxPrefetch+more+scheduler.MaxExpress),
	}
	w.expressOnly.state.Store(&expressOnlyState{changed: make(chan struct{})})
	return w
}

// start starts the workers; close ends them when nothing waits any more.
func (w *workers) start() {
	express := w.capacity.concurrency / scheduler.ExpressPart
	for range w.capacity.concurrency - express {
		w.running.Go(func() { w.work(w.nextAttempt) })
	}
	for range express {
		w.running.Go(func() { w.work(w.nextExpressOnly) })
	}
}

// deliver gives a job to the workers. It never blocks: there is a place for all that may be claimed.
func (w *workers) deliver(a *attempt) { w.buffer <- a }

// close gives back what waits, and ends the workers. Nothing may be delivered any more.
func (w *workers) close() {
	for waits := true; waits; {
		select {
		case a := <-w.buffer:
			w.giveBack(a)
		case a := <-w.express:
			w.giveBack(a)
		default:
			waits = false
		}
	}
	close(w.buffer)
	close(w.express)
}

// work runs the attempts that next returns until the channels are closed. If a handler ends its goroutine, another one
// goes on.
func (w *workers) work(next func() *attempt) {
	for a := next(); a != nil; a = next() {
		if !w.pause.mayStart(a) || !w.outages.mayRun(a) {
			w.giveBack(a)
			continue
		}
		w.capacity.busy.Inc()
		carryOut(w.process, a, func(took time.Duration, done bool) {
			if !done {
				w.running.Go(func() { w.work(next) })
			}
			if a.tenant != nil {
				a.tenant.InHand.Add(-1)
			}
			w.capacity.busy.Dec()
			w.capacity.finished(took)
			for _, one := range a.together() {
				w.hand(one)
			}
		})
	}
}

// hand has an attempt that is over settled, after its last report if it made any.
func (w *workers) hand(a *attempt) {
	a.over()
	w.outages.noteOutcome(a)
	if !a.reports.End() {
		w.ended <- a
	}
}

// nextAttempt waits for the next job that a worker is to run, nil when the buffer
// is closed. When jobs wait in both channels, select picks at random, so neither starves.
func (w *workers) nextAttempt() *attempt {
	if len(w.express) == 0 { // the usual case, at the price of one channel
		select {
		case a := <-w.buffer:
			return a
		default:
		}
	}
	select {
	case a := <-w.express:
		return a
	case a := <-w.buffer:
		return a
	}
}

// nextExpressOnly is nextAttempt for one of the workers that may be for express jobs only.
func (w *workers) nextExpressOnly() *attempt {
	for {
		state, buffer := w.expressOnly.state.Load(), w.buffer
		if state.on {
			buffer = nil // never ready
		}
		select {
		case a := <-w.express: // nil when it is closed
			return a
		case a := <-buffer:
			if a == nil || !w.expressOnly.state.Load().on {
				return a
			}
			w.giveBack(a) // both were ready: the reserve began while this worker waited
		case <-state.changed:
		}
	}
}

// expressOnly says whether some of a queue's workers take jobs of the express channel only:
// those of tenants that hold few. Which workers they are is fixed when the dispatcher
// starts; whether they take others the claim loop decides.
type expressOnly struct {
	state atomic.Pointer[expressOnlyState]
}

// expressOnlyState lasts until it has changed, when another takes its place: a worker may be
// waiting for that.
type expressOnlyState struct {
	on      bool
	changed chan struct{}
}

// set keeps the workers for express jobs, or frees them. Only the claim loop calls it.
func (e *expressOnly) set(on bool) {
	if old := e.state.Load(); old.on != on {
		e.state.Store(&expressOnlyState{on, make(chan struct{})})
		close(old.changed) // after the store: a worker that this wakes looks again
	}
}

// giveBackStale returns jobs that have waited in the buffer for long: the
// handlers became slower than they were when the jobs were fetched ahead. Only
// the claim loop calls it, because nobody else may send to the buffer, but for one job
// that has its own place there (reservation).
func (w *workers) giveBackStale(now time.Time) {
	w.giveBackStaleOf(w.buffer, now)
	w.giveBackStaleOf(w.express, now)
}

func (w *workers) giveBackStaleOf(claimed chan *attempt, now time.Time) {
	for range len(claimed) {
		select {
		case a := <-claimed:
			if now.Sub(a.bufferedAt()) < staleAfter {
				claimed <- a // to the back: the order is approximate anyway
				continue
			}
			w.giveBack(a)
			w.capacity.meanWork.Store(int64(staleAfter)) // fetch no further ahead until jobs are short again
		default:
			return
		}
	}
}

// giveBack returns what was in the buffer, a job or a batch.
func (w *workers) giveBack(a *attempt) {
	w.capacity.inHand.Add(-1)
	if a.tenant != nil {
		a.tenant.InHand.Add(-1)
	}
	for _, one := range a.together() {
		w.returnUnstarted(one)
	}
}

// returnUnstarted gives back a job that was claimed and not started.
func (w *workers) returnUnstarted(a *attempt) {
	a.outcome = outcome.Interrupted
	a.returned = true
	w.ended <- a
}
