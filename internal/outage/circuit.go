package outage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// A Circuit keeps jobs from running, one after the other, into something that is away.
//
//	closed   jobs run. So many outcomes in a row that say it is away open the circuit.
//	open     no job runs until a probe is due.
//	probing  one job may run, or runs. If it finds the thing away, the circuit is open again, and the
//	         next probe is due later; if it reaches it, the circuit is closed.
//
// The next probe does not wait for the outcome of the one before: where jobs take an hour, it is an hour until the
// first of them succeeds, and meanwhile one more starts whenever a probe is due.
//
// A Circuit belongs to one process: each finds out by itself. It is safe for concurrent use.
type Circuit struct {
	due func() // called on a goroutine of its own when a probe is due

	state atomic.Int32 // a State; changed with mu held
	calm  atomic.Bool  // closed, and the last outcome did not say that it is away

	mu    sync.Mutex
	row   int       // how many outcomes in a row said that it is away
	since time.Time // of the first of them
	free  bool      // the probe has not been given to a job
	next  time.Time // when a probe is due; of an open circuit
	wait  backoff.Backoff
	timer *time.Timer
}

// State is what a Circuit lets through.
type State int32

const (
	Closed State = iota
	Open
	Probing
)

const (
	// opensAfter is how many outcomes in a row open a circuit. Fewer would let a chance stop a kind, more
	// let so many more jobs find out.
	opensAfter = 5
	// Probes follow each other as the retries of any loop here do, and in a long outage after an eighth of
	// how long it has lasted, up to a minute.
	longOutage = 8
	longestGap = time.Minute
)

// NewCircuit returns a closed circuit that calls due, on a goroutine of its own, whenever a probe is due.
func NewCircuit(due func()) *Circuit {
	c := &Circuit{due: due}
	c.calm.Store(true)
	return c
}

// State returns what the circuit lets through now.
func (c *Circuit) State() State { return State(c.state.Load()) }

// Since returns since when the outage lasts; ok is false if the circuit is closed.
func (c *Circuit) Since() (since time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.State() != Closed
}

// Admit reports whether a job may run now; with probe, its outcome is that of a probe.
func (c *Circuit) Admit() (ok, probe bool) {
	if c.State() == Closed {
		return true, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	probe, c.free = c.free, false
	return probe || c.State() == Closed, probe
}

// Probe reports whether a job may be looked for that is to be the probe. It says so once for each.
func (c *Circuit) Probe() bool {
	if c.State() == Closed {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.State() == Closed || now.Before(c.next) {
		return false
	}
	c.state.Store(int32(Probing))
	c.free = true
	c.dueIn(max(c.wait.Next(), min(now.Sub(c.since)/longOutage, longestGap)))
	return true
}

// NoProbe takes back what Probe said, because no job was found. The next look is not before rest is over.
func (c *Circuit) NoProbe(rest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.free {
		return
	}
	c.free = false
	c.state.Store(int32(Open))
	c.dueIn(max(min(rest, longestGap), time.Until(c.next)))
}

// Away notes an outcome that says that it is away, and for how long if that is known. It reports whether the
// circuit has been opened by it.
func (c *Circuit) Away(probe bool, wait time.Duration) (opened bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calm.Store(false)
	if c.row++; c.row == 1 {
		c.since = time.Now()
	}
	switch {
	case c.State() == Closed && c.row < opensAfter:
		return false
	case c.State() == Closed:
		c.state.Store(int32(Open))
		c.dueIn(max(c.wait.Next(), min(wait, longestGap)))
		return true
	case probe && !c.free:
		c.state.Store(int32(Open))
	}
	if wait = min(wait, longestGap); time.Until(c.next) < wait {
		c.dueIn(wait)
	}
	return false
}

// Reached notes an outcome that says that it is there. If that has closed the circuit, it returns how long the
// outage has lasted.
func (c *Circuit) Reached() (lasted time.Duration, closed bool) {
	if c.calm.Load() { // nearly always
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	closed = c.State() != Closed
	if closed {
		c.timer.Stop()
		c.state.Store(int32(Closed))
		lasted = time.Since(c.since)
	}
	c.row, c.free = 0, false
	c.wait.Reset()
	c.calm.Store(true)
	return lasted, closed
}

// dueIn has the next probe due after d; mu is held.
func (c *Circuit) dueIn(d time.Duration) {
	c.next = time.Now().Add(d)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.due)
		return
	}
	c.timer.Reset(d)
}
