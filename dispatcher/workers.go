package dispatcher

import (
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/buffer"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/circuit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/outcome"
)

// staleAfter is how long a job waits for a worker before the claim loop gives it back.
const staleAfter = 2 * time.Second

// workers runs the jobs of a queue. Each worker runs one job at a time.
type workers struct {
	*common
	capacity *capacity
	pause    *limit.PauseCheck
	circuits *circuit.Circuits
	ended    chan<- *attempt // outcomes to settle
	running  *sync.WaitGroup
	buffer   *buffer.Buffer[*attempt]
}

func newWorkers(p *common, c *capacity, pause *limit.PauseCheck, circuits *circuit.Circuits, ended chan<- *attempt,
	running *sync.WaitGroup,
) *workers {
	return &workers{
		common: p, capacity: c, pause: pause, circuits: circuits, ended: ended, running: running,
		buffer: buffer.New(c.concurrency, c.concurrency/scheduler.ExpressPart, (*attempt).bufferedAt),
	}
}

// start starts the workers. They end after close.
func (w *workers) start() {
	for range w.capacity.concurrency {
		w.running.Go(func() { w.work(false) })
	}
}

// close gives back the waiting jobs and ends the workers. Nothing may be delivered after it.
func (w *workers) close() {
	for _, a := range w.buffer.Close() {
		w.giveBack(a)
	}
}

// work runs attempts until close. wasOther is for Buffer.Next. If a handler ends its goroutine, a new goroutine
// continues.
func (w *workers) work(wasOther bool) {
	for a, other, ok := w.buffer.Next(wasOther); ok; a, other, ok = w.buffer.Next(other) {
		if !w.mayRun(a) {
			w.giveBack(a)
			continue
		}
		w.capacity.busy.Inc()
		carryOut(w.common, a, func(took time.Duration, done bool) {
			if !done {
				w.running.Go(func() { w.work(other) })
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

// mayRun reports whether a job that waited for a worker may run, and notes whether it is a probe.
func (w *workers) mayRun(a *attempt) (ok bool) {
	if !w.pause.MayStart(a.lease.Claimed) {
		return false
	}
	ok, a.probe = w.circuits.Admit(a.job.Kind)
	return ok
}

// hand sends a finished attempt to the settler, after its last report if it made any.
func (w *workers) hand(a *attempt) {
	a.lease.HandlerReturned()
	w.circuits.Note(a.job.Kind, a.probe, a.outcome, a.err)
	if !a.reports.End() {
		w.ended <- a
	}
}

// giveBackStale gives back jobs that have waited long for a worker: the handlers became slower after the jobs were
// claimed ahead.
func (w *workers) giveBackStale(now time.Time) {
	for _, a := range w.buffer.TakeStale(now.Add(-staleAfter)) {
		w.giveBack(a)
		w.capacity.meanWork.Store(int64(staleAfter)) // claim hardly any ahead until jobs are short again
	}
}

// giveBack gives back a job or a batch.
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
