package outage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// A Circuit keeps jobs from running, one after the other, into a dependency that is unavailable.
//
//	closed   jobs run. Several outcomes in a row that find the dependency unavailable open the circuit.
//	open     no job runs until a probe is due.
//	probing  one job may run, or runs. If it finds the dependency unavailable, the circuit is open again,
//	         and the next probe is due later; if it reaches the dependency, the circuit is closed.
//
// The next probe does not wait for the outcome of the one before: where jobs take an hour, the first of them takes an
// hour to succeed, and meanwhile another one starts whenever a probe is due.
//
// A Circuit belongs to one process: each process finds out for itself. It is safe for concurrent use.
type Circuit struct {
	due func() // called on a goroutine of its own when a probe is due

	state atomic.Int32 // a State; changed with mu held
	calm  atomic.Bool  // closed, and the last outcome did not find the dependency unavailable

	mu    sync.Mutex
	row   int       // how many outcomes in a row found the dependency unavailable
	since time.Time // time of the first of them
	free  bool      // the probe has not been given to a job
	next  time.Time // when a probe of an open circuit is due
	wait  backoff.Backoff
	timer *time.Timer
}

// State is the state of a Circuit.
type State int32

const (
	Closed State = iota
	Open
	Probing
)

const (
	// opensAfter is how many outcomes in a row open a circuit. With fewer, chance could stop a kind; with more, as many
	// more jobs would fail first.
	opensAfter = 5
	// Probes follow each other like the retries of any loop here, but in a long outage only after an eighth of the time
	// that it has lasted, up to a minute.
	longOutage = 8
	longestGap = time.Minute
)

// NewCircuit returns a closed circuit that calls due, on a goroutine of its own, whenever a probe is due.
func NewCircuit(due func()) *Circuit {
	c := &Circuit{due: due}
	c.calm.Store(true)
	return c
}

// State returns the current state of the circuit.
func (c *Circuit) State() State { return State(c.state.Load()) }

// Since returns when the outage began; ok is false if the circuit is closed.
func (c *Circuit) Since() (since time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.State() != Closed
}

// Admit reports whether a job may run now. If probe is true, the job is a probe.
func (c *Circuit) Admit() (ok, probe bool) {
	if c.State() == Closed {
		return true, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	probe, c.free = c.free, false
	return probe || c.State() == Closed, probe
}

// Probe reports whether to look for a job that can be the probe. It reports true once for each probe.
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

// NoProbe takes the probe back, because no job was found. The next look waits at least for rest.
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

// Away records an outcome that found the dependency unavailable, and for how long if that is known. It reports whether
// this outcome has opened the circuit.
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

// Reached records an outcome that found the dependency available. If that has closed the circuit, it returns how long
// the outage has lasted.
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

// dueIn schedules the next probe after d; mu is held.
func (c *Circuit) dueIn(d time.Duration) {
	c.next = time.Now().Add(d)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.due)
		return
	}
	c.timer.Reset(d)
}
