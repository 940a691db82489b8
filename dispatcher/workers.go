package dispatcher

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/outcome"
)

// staleAfter is how long a job waits in the buffer before the claim loop gives it back.
const staleAfter = 2 * time.Second

// workers runs the jobs of a queue, and buffers claimed jobs. Each worker runs one job at a time.
type workers struct {
	*process
	capacity *capacity
	pause    *pauseCheck
	outages  *outages
	ended    chan<- *attempt // outcomes to settle
	running  *sync.WaitGroup

	buffer      chan *attempt // claimed, not started
	express     chan *attempt // jobs of tenants that hold few: they do not wait behind other tenants' jobs
	expressOnly expressOnly   // keeps some workers for the jobs in express
}

// newWorkers makes channels with room for all jobs that can be claimed, and for more jobs besides.
func newWorkers(p *process, c *capacity, pause *pauseCheck, outages *outages, ended chan<- *attempt, running *sync.WaitGroup, more int) *workers {
	w := &workers{
		process: p, capacity: c, pause: pause, outages: outages, ended: ended, running: running,
		buffer:  make(chan *attempt, c.concurrency+maxPrefetch+more+1), // + 1: a job that a commit claims
		express: make(chan *attempt, c.concurrency+maxPrefetch+more+scheduler.MaxExpress),
	}
	w.expressOnly.state.Store(&expressOnlyState{changed: make(chan struct{})})
	return w
}

// start starts the workers. They end after close, when no jobs wait.
func (w *workers) start() {
	express := w.capacity.concurrency / scheduler.ExpressPart
	for range w.capacity.concurrency - express {
		w.running.Go(func() { w.work(w.nextAttempt) })
	}
	for range express {
		w.running.Go(func() { w.work(w.nextExpressOnly) })
	}
}

// deliver gives a job to the workers. It never blocks: the buffer has room for all jobs that may be claimed.
func (w *workers) deliver(a *attempt) { w.buffer <- a }

// close gives back the waiting jobs and ends the workers. Nothing may be delivered after it.
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

// work runs the attempts that next returns until the channels are closed. If a handler ends its goroutine, a new
// goroutine continues.
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

// hand sends a finished attempt to the settler, after its last report if it made any.
func (w *workers) hand(a *attempt) {
	a.over()
	w.outages.noteOutcome(a)
	if !a.reports.End() {
		w.ended <- a
	}
}

// nextAttempt waits for the next job for a worker. It returns nil when the buffer is closed. When jobs wait in both
// channels, select picks at random, so neither starves.
func (w *workers) nextAttempt() *attempt {
	if len(w.express) == 0 { // the usual case: one channel costs less than two
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

// nextExpressOnly waits like nextAttempt, for the workers that may be reserved for express jobs.
func (w *workers) nextExpressOnly() *attempt {
	for {
		state, buffer := w.expressOnly.state.Load(), w.buffer
		if state.on {
			buffer = nil // a nil channel is never ready
		}
		select {
		case a := <-w.express: // nil when it is closed
			return a
		case a := <-buffer:
			if a == nil || !w.expressOnly.state.Load().on {
				return a
			}
			w.giveBack(a) // both were ready: the reservation began while this worker waited
		case <-state.changed:
		}
	}
}

// expressOnly records whether some of a queue's workers only take jobs of the express channel, which are those of
// tenants that hold few. The choice of these workers is fixed when the dispatcher starts; the claim loop decides
// whether they take other jobs, too.
type expressOnly struct {
	state atomic.Pointer[expressOnlyState]
}

// expressOnlyState is one state of an expressOnly. A change replaces it with another and closes changed, for which a
// worker may be waiting.
type expressOnlyState struct {
	on      bool
	changed chan struct{}
}

// set reserves the workers for express jobs, or frees them. Only the claim loop calls it.
func (e *expressOnly) set(on bool) {
	if old := e.state.Load(); old.on != on {
		e.state.Store(&expressOnlyState{on, make(chan struct{})})
		close(old.changed) // after the store: a worker that this wakes looks again
	}
}

// giveBackStale gives back jobs that have waited long in the buffer: the handlers became slower after the jobs were
// claimed ahead. Only the claim loop calls it, because nobody else may send to the buffer, except a reservation, whose
// job has a place of its own.
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
			w.capacity.meanWork.Store(int64(staleAfter)) // claim no further ahead until jobs are short again
		default:
			return
		}
	}
}

// giveBack gives back an entry of the buffer, a job or a batch.
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
