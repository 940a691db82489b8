package dispatcher

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
)

const (
	defaultConcurrency = 64
	maxClaimBytes      = 2 * statementBytes    // of a claim's payloads, estimated from the last ones
	prefetchTime       = 40 * time.Millisecond // longest time that a job should wait in the buffer
	outlier            = 32                    // a longer run counts as this many times the average
)

// capacity counts the jobs of a queue that this process holds, and computes how many more it should claim.
type capacity struct {
	*wake.Waker
	limits       limit.State  // of the queue
	refused      atomic.Int64 // outcomes of the queue that the database refuses for now: see most
	concurrency  int
	claimBytes   int        // of a claim's payloads
	seats        func() int // of the batches that wait for more jobs; nil if no kind is handled in batches
	busy         prometheus.Gauge
	waitsForRoom atomic.Bool  // the claim loop waits for room
	inHand       atomic.Int64 // jobs claimed and not finished
	meanWork     atomic.Int64 // nanoseconds of a handler's run, moving average
	meanSize     atomic.Int64 // bytes of a payload, moving average
}

// prefetch returns how many jobs may wait in the buffer: as many as the workers finish in prefetchTime. Short jobs are
// claimed far ahead, long ones not at all, so that no process hoards jobs that another could start. Memory bounds how
// far ahead large jobs are claimed. A limited queue claims no job that may not start at once.
func (c *capacity) prefetch() int {
	mean := c.meanWork.Load()
	if mean == 0 || c.limits.Known() {
		return 0
	}
	return int(min(int64(c.concurrency)*int64(prefetchTime)/mean, 3*maxBatch, c.maxBySize()))
}

// maxBySize returns how many jobs of the average size may be claimed together within claimBytes.
func (c *capacity) maxBySize() int64 { return max(int64(c.claimBytes)/max(c.meanSize.Load(), 1), 1) }

// room returns how many jobs to claim now. It is 0 until a batch is worth a round trip.
func (c *capacity) room() int {
	prefetch := c.prefetch()
	room := c.concurrency + prefetch - int(c.inHand.Load())
	if room < max(1, min(prefetch/2, maxBatch)) { // without prefetch, a single slot is
		return 0
	}
	if c.seats != nil {
		room += c.seats()
	}
	return min(room, c.most())
}

// most returns how many jobs the next claim may bring: what one statement may move, less the outcomes that the database
// refuses for now. This process still holds their jobs in memory. If a trigger refuses the outcomes of a kind, they
// would otherwise grow without bound, one run after another. A few of them, whose rows are locked, stop no claim.
func (c *capacity) most() int { return max(min(maxBatch, int(c.maxBySize()))-int(c.refused.Load()), 0) }

// places returns what there is room for now. waiting is how many jobs of tenants that hold few wait for a worker.
func (c *capacity) places(waiting int) scheduler.Places {
	prefetch := c.prefetch()
	return scheduler.Places{
		Room: c.room(), Capacity: c.concurrency + prefetch,
		// Without prefetch no job is claimed without room: another process may have a worker for it.
		Express: min(min(scheduler.MaxExpress, prefetch)-waiting, c.most()),
	}
}

// notCalled stands for the time of a handler that was not called, because its jobs may not run any more.
const notCalled time.Duration = -1

// finished counts a job as no longer in hand, and wakes the claim loop if it waits for room.
func (c *capacity) finished(took time.Duration) {
	if took != notCalled {
		c.noteWork(took)
	}
	c.inHand.Add(-1)
	if c.waitsForRoom.Load() && c.room() > 0 && c.waitsForRoom.CompareAndSwap(true, false) {
		c.RoomMade()
	}
}

// jobEnded makes a queue of which as many jobs run as may look again, because there is room.
func (c *capacity) jobEnded() {
	if c.limits.Reached() {
		c.RoomMade()
	}
}

// noteWork adds the time of a handler to the average.
func (c *capacity) noteWork(took time.Duration) {
	mean := c.meanWork.Load()
	if mean == 0 {
		mean = int64(took)
	}
	// A single outlier says little about the other jobs, so it counts as outlier times the mean. Several in a row still
	// move the mean.
	took = min(took, time.Duration(outlier*mean))
	c.meanWork.Store(max(mean+(int64(took)-mean)/16, 1)) // a lost update does not matter
}

// noteSize raises the mean size at once when payloads become larger, and lowers it slowly when they become smaller.
func (c *capacity) noteSize(mean int64) {
	if known := c.meanSize.Load(); mean < known {
		mean = known + (mean-known)/8
	}
	c.meanSize.Store(mean)
}
