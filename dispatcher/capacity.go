package dispatcher

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
)

const (
	defaultConcurrency = 64
	maxPrefetch        = 3 * maxBatch          // jobs claimed beyond what can run at once
	maxClaimBytes      = 2 * statementBytes    // of a claim's payloads, to judge by the last ones
	prefetchTime       = 40 * time.Millisecond // how long a job should wait in the buffer at most
	outlier            = 32                    // a run longer than this many times the average counts as that many
)

// capacity is how many jobs of a queue this process holds, and how many more it should claim.
type capacity struct {
	*waker
	concurrency int
	claimBytes  int        // of a claim's payloads
	seats       func() int // that batches which wait for more jobs have; nil if no kind's jobs are handled together
	busy        prometheus.Gauge
	limited     atomic.Bool  // by an operator: no job is claimed that may not start at once
	hungry      atomic.Bool  // the claim loop waits for room
	inHand      atomic.Int64 // claimed and not finished
	meanWork    atomic.Int64 // nanoseconds of a handler's run, moving average
	meanSize    atomic.Int64 // bytes of a payload, moving average
}

// prefetch is how many jobs may wait in the buffer: as many as the workers finish
// in prefetchTime. Short jobs are fetched far ahead, long ones not at all, so that
// no process hoards what another could start; large ones no further than memory allows.
func (c *capacity) prefetch() int {
	mean := c.meanWork.Load()
	if mean == 0 || c.limited.Load() {
		return 0
	}
	return int(min(int64(c.concurrency)*int64(prefetchTime)/mean, maxPrefetch, c.fits()))
}

// fits is how many jobs of the usual size are not too much at a time.
func (c *capacity) fits() int64 { return max(int64(c.claimBytes)/max(c.meanSize.Load(), 1), 1) }

// room is how many jobs to claim now: 0 until a batch is worth a round trip.
func (c *capacity) room() int {
	prefetch := c.prefetch()
	room := c.concurrency + prefetch - int(c.inHand.Load())
	if room < max(1, min(prefetch/2, maxBatch)) { // with no prefetch, one slot is worth it
		return 0
	}
	if c.seats != nil {
		room += c.seats()
	}
	return min(room, maxBatch, int(c.fits()))
}

// places is what there is room for now, when so many jobs of tenants that hold few wait for a worker.
func (c *capacity) places(waiting int) scheduler.Places {
	p := scheduler.Places{Room: c.room(), Capacity: c.concurrency + c.prefetch()}
	switch {
	case c.limited.Load(): // nothing is claimed beyond what may start at once
	case c.prefetch() > 0:
		p.Express = min(scheduler.MaxExpress, c.prefetch()) - waiting
	default: // another process may have a worker
		p.Express = c.concurrency - int(c.inHand.Load())
	}
	return p
}

// finished counts a job as no longer in hand and wakes the claim loop if it waits
// for room.
func (c *capacity) finished(took time.Duration) {
	mean := c.meanWork.Load()
	if mean == 0 {
		mean = int64(took)
	}
	// One job that takes a thousand times as long as the others says little of them:
	// it counts as a few. Some in a row are believed all the same.
	took = min(took, time.Duration(outlier*mean))
	c.meanWork.Store(max(mean+(int64(took)-mean)/16, 1)) // a lost update does not matter
	c.inHand.Add(-1)
	if c.hungry.Load() && c.room() > 0 && c.hungry.CompareAndSwap(true, false) {
		c.roomMade()
	}
}

// noteSize learns at once that payloads have become larger, and slowly that they
// have become smaller.
func (c *capacity) noteSize(mean int64) {
	if known := c.meanSize.Load(); mean < known {
		mean = known + (mean-known)/8
	}
	c.meanSize.Store(mean)
}
