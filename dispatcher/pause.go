package dispatcher

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pauseCheck lets the workers of a queue find out whether it is paused.
//
// A paused queue refuses claims, so a claim that returned jobs proves that the queue was open when it was sent. A job
// that waited in this process (claimed ahead, gathered for a batch, or in a process that stood still) may start if that
// proof is fresh; otherwise one worker asks the database and all use the answer:
//
//	claim sent               pause        0.7 s        (asks: paused, gives back)
//	     └──────── may start on this proof ──┘
//
// So no job starts later than a second after its queue was paused, as long as the database answers within 0.7 s. Jobs
// that start without waiting ask nothing.
type pauseCheck struct {
	queue  string
	db     pauseStatement
	jobs   context.Context
	origin time.Time    // the zero of open
	open   atomic.Int64 // until then the queue is proven to be open, in nanoseconds after origin
	asking sync.Mutex
	paused time.Time // until then nobody asks whether it still is; guarded by asking
}

type pauseStatement interface {
	QueueIsPaused(ctx context.Context, queue string) (bool, error)
}

func newPauseCheck(p *process, queue string, db pauseStatement) *pauseCheck {
	return &pauseCheck{queue: queue, db: db, jobs: p.handlerContext, origin: time.Now()}
}

// proven returns until when an answer proves that a queue is open.
func proven(sent, answered time.Time) time.Time {
	until := sent.Add(noticeWithin)
	if news := answered.Add(time.Second - noticeWithin); news.After(until) {
		return news
	}
	return until
}

// noteOpen records the proof of a claim that returned jobs.
func (c *pauseCheck) noteOpen(sent, answered time.Time) {
	c.open.Store(int64(proven(sent, answered).Sub(c.origin))) // an older proof may win: a worker asks sooner then
}

func (c *pauseCheck) isOpen(now time.Time) bool { return int64(now.Sub(c.origin)) < c.open.Load() }

// mayStart reports whether a job that waited for a worker may start. It may not if an operator has paused the queue.
func (c *pauseCheck) mayStart(a *attempt) bool {
	if now := time.Now(); now.Before(proven(a.claimed, a.arrived)) || c.isOpen(now) {
		return true
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	sent := time.Now()
	switch {
	case c.isOpen(sent): // another worker has asked
		return true
	case sent.Before(c.paused):
		return false
	}
	ctx, cancel := bounded(c.jobs)
	defer cancel()
	paused, err := c.db.QueueIsPaused(ctx, c.queue)
	if err == nil && paused {
		c.paused = time.Now().Add(noticeWithin)
		return false
	}
	// Without an answer the job starts, as running jobs go on: an operator cannot reach the database either, and the
	// claims complain.
	c.noteOpen(sent, time.Now())
	return true
}
