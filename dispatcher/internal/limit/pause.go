package limit

import (
	"context"
	"sync"
	"time"
)

// PauseCheck lets the workers of a queue find out whether it is paused. It is safe for concurrent use.
//
// A paused queue refuses claims, so a claim proves that the queue was open when it was sent. A job that waited in this
// process (claimed ahead, gathered for a batch, or in a process that stood still) may start if its claim is younger
// than Notice; otherwise one worker asks the database, and all use the answer for as long:
//
//	claim sent               pause        Notice       (asks: paused, gives back)
//	     └──────── may start on this proof ──┘
//
// So no job starts later than a second after its queue was paused, as long as the database answers within Notice. Jobs
// that start without waiting ask nothing.
//
// Without an answer jobs start, as running jobs go on: an operator cannot reach the database either, and the claims
// complain. Workers then wait for the database for half of the time at most: Timeout, and nobody asks for as long.
type PauseCheck struct {
	Queue   string
	DB      PauseStatement
	Context context.Context // in which workers ask
	Timeout time.Duration   // of the statement
	Notice  time.Duration   // how long a claim or an answer proves that the queue is open; less than a second

	mu     sync.Mutex
	paused bool
	until  time.Time // nobody asks again before
}

// PauseStatement is the statement of a PauseCheck.
type PauseStatement interface {
	QueueIsPaused(ctx context.Context, queue string) (bool, error)
}

// MayStart reports whether a job whose claim was sent at the given time may start. It may not if an operator has paused
// the queue meanwhile.
func (c *PauseCheck) MayStart(claimed time.Time) bool {
	if time.Since(claimed) < c.Notice {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent := time.Now(); !sent.Before(c.until) {
		ctx, cancel := context.WithTimeout(c.Context, c.Timeout)
		defer cancel()
		paused, err := c.DB.QueueIsPaused(ctx, c.Queue)
		c.paused = err == nil && paused
		serves := time.Second - c.Notice // at least, for those who wait for the answer
		if err != nil {
			serves = c.Timeout
		}
		c.until = sent.Add(max(c.Notice, time.Since(sent)+serves))
	}
	return !c.paused
}
