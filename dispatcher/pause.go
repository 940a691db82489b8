package dispatcher

import (
	"context"
	"sync"
	"time"
)

// pauseCheck lets the workers of a queue find out whether it is paused.
//
// A paused queue refuses claims, so a claim proves that the queue was open when it was sent. A job that waited in this
// process (claimed ahead, gathered for a batch, or in a process that stood still) may start if its claim is younger
// than noticeWithin; otherwise one worker asks the database, and all use the answer for as long:
//
//	claim sent               pause        0.7 s        (asks: paused, gives back)
//	     └──────── may start on this proof ──┘
//
// So no job starts later than a second after its queue was paused, as long as the database answers within 0.7 s. Jobs
// that start without waiting ask nothing.
//
// Without an answer jobs start, as running jobs go on: an operator cannot reach the database either, and the claims
// complain. Workers then wait for the database for half of the time at most: hintTimeout, and nobody asks for as long.
type pauseCheck struct {
	queue string
	db    pauseStatement
	jobs  context.Context

	mu     sync.Mutex
	paused bool
	until  time.Time // nobody asks again before
}

type pauseStatement interface {
	QueueIsPaused(ctx context.Context, queue string) (bool, error)
}

func newPauseCheck(p *common, queue string, db pauseStatement) *pauseCheck {
	return &pauseCheck{queue: queue, db: db, jobs: p.handlerContext}
}

// mayStart reports whether a job that waited for a worker may start. It may not if an operator has paused the queue.
func (c *pauseCheck) mayStart(a *attempt) bool {
	if time.Since(a.lease.Claimed) < noticeWithin {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent := time.Now(); !sent.Before(c.until) {
		ctx, cancel := context.WithTimeout(c.jobs, hintTimeout)
		defer cancel()
		paused, err := c.db.QueueIsPaused(ctx, c.queue)
		c.paused = err == nil && paused
		serves := time.Second - noticeWithin // at least, for those who wait for the answer
		if err != nil {
			serves = hintTimeout
		}
		c.until = sent.Add(max(noticeWithin, time.Since(sent)+serves))
	}
	return !c.paused
}
