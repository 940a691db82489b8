package dispatcher

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pauseCheck is what the workers of a queue know of whether it is paused.
//
// A paused queue refuses claims, so a claim that brought something proves that the
// queue was open when it was sent. A job that waited in this process (it was fetched
// ahead, is gathered for a batch, or its process stood still) may start if that proof is
// fresh; otherwise one worker checks and all use the answer:
//
//	claim sent               pause        0.7 s        (asks: paused, gives back)
//	     └──────── may start on this proof ──┘
//
// So nothing starts later than a second after its queue was paused, while the
// database answers within 0.7 s. Jobs that start as soon as they should ask nothing.
type pauseCheck struct {
	queue  string
	db     pauseStatement
	jobs   context.Context
	origin time.Time    // from which open counts
	open   atomic.Int64 // until then the queue is proven to be open, in nanoseconds
	asking sync.Mutex
	paused time.Time // until then nobody asks whether it still is; asking is held
}

const proofAge = 700 * time.Millisecond // from when the question was sent

type pauseStatement interface {
	QueueIsPaused(ctx context.Context, queue string) (bool, error)
}

func newPauseCheck(p *process, queue string, db pauseStatement) *pauseCheck {
	return &pauseCheck{queue: queue, db: db, jobs: p.handlerContext, origin: time.Now()}
}

// proven is until when an answer says that a queue is open.
func proven(sent, answered time.Time) time.Time {
	until := sent.Add(proofAge)
	if news := answered.Add(time.Second - proofAge); news.After(until) {
		return news
	}
	return until
}

// noteOpen takes the proof of a claim that brought something.
func (c *pauseCheck) noteOpen(sent, answered time.Time) {
	c.open.Store(int64(proven(sent, answered).Sub(c.origin))) // an older one that wins is only asked for sooner
}

func (c *pauseCheck) isOpen(now time.Time) bool { return int64(now.Sub(c.origin)) < c.open.Load() }

// mayStart reports whether what waited for a worker may start, which it may not if
// an operator has paused the queue.
func (c *pauseCheck) mayStart(a *attempt) bool {
	if now := time.Now(); now.Before(proven(a.claimed, a.arrived)) || c.isOpen(now) {
		return true
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	sent := time.Now()
	switch {
	case c.isOpen(sent): // somebody else has asked
		return true
	case sent.Before(c.paused):
		return false
	}
	ctx, cancel := bounded(c.jobs)
	defer cancel()
	paused, err := c.db.QueueIsPaused(ctx, c.queue)
	if err == nil && paused {
		c.paused = time.Now().Add(proofAge)
		return false
	}
	// Where nobody answers, the job goes on, as those that run do: an operator cannot
	// reach the database either, and the claims complain.
	c.noteOpen(sent, time.Now())
	return true
}
