package dispatcher

import (
	"context"
	"sync/atomic"
	"time"
)

// Wake has every queue look for jobs now. It is for the producer in the same program,
// which has just committed one ([outbox.Producer.AlsoWake]). It never blocks, may be
// called at any time, and reports false if it was called before and not answered yet.
//
// What comes by Config.Wake may come from anybody, and often for jobs that another
// process has long begun; it is paced when it finds nothing. Wake is answered at once,
// as long as it leads to jobs.
func (d *Dispatcher) Wake() bool {
	select {
	case d.near <- struct{}{}:
		return true
	default:
		return false
	}
}

// fanOut passes each wake-up on to every queue.
func (d *Dispatcher) fanOut(ctx context.Context) {
	others := d.config.Wake
	for {
		near := false
		select {
		case <-ctx.Done():
			return
		case <-d.near:
			near = true
		case _, open := <-others:
			if !open {
				others = nil
				continue
			}
		}
		d.leases.poke()
		for _, q := range d.queues {
			if near {
				q.purse.near.Store(true)
			}
			q.poke()
		}
	}
}

// poke makes the claim loop look again: there may be jobs that it knows nothing of. It
// never blocks.
func (q *queue) poke() {
	q.notified.Store(true)
	q.roomMade()
}

// roomMade makes the claim loop go on with what it knows; it never blocks.
func (q *queue) roomMade() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// jobEnded has a queue that is at one of its limits look again: there is room.
func (q *queue) jobEnded() {
	if q.limits.full.Load() {
		q.roomMade()
	}
}

// purse pays for wake-ups that find nothing. It holds three and is refilled with
// fifty a second: anybody who can connect may send notifications. What finds jobs
// costs nothing, and so the first wake-up after a quiet time is answered at once.
//
// The own producer's wake-ups are not held up by those of others. Without that, N
// processes that enqueue and dispatch would hold up each other: each hears of every
// job, of its own for a second time, and of most of them when they have been claimed.
// But its jobs may all be for others; then its wake-ups are paid for like any, until
// one finds something.
type purse struct {
	near     atomic.Bool // the own producer has woken the queue, and it has not looked since
	nearPays atomic.Bool // that found jobs the last time
	looks    float64     // wake-ups that are paid for; the claim loop's own
	counted  time.Time   // when looks was; the claim loop's own
}

const (
	freeLooks      = 3
	looksPerSecond = 50
)

// pace waits until a look that may find nothing is paid for; false if ctx ends first.
func (q *queue) pace(ctx context.Context) bool {
	p, now := &q.purse, time.Now()
	p.looks = min(p.looks+now.Sub(p.counted).Seconds()*looksPerSecond, freeLooks)
	p.counted = now
	if p.atOnce() {
		return true
	}
	if q.claimed == 0 {
		p.looks--
	}
	if p.looks >= 0 {
		return true
	}
	paid := time.NewTimer(time.Duration(-p.looks / looksPerSecond * float64(time.Second)))
	defer paid.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-paid.C:
			return true
		case <-q.wake: // the look that is waited for answers it, too
			if p.atOnce() {
				return true
			}
		}
	}
}

func (p *purse) atOnce() bool { return p.nearPays.Load() && p.near.Load() }
