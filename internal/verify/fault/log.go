package fault

import (
	"sync"
	"time"
)

// Done is a fault that was injected.
type Done struct {
	Kind   string    `json:"kind"`
	Target string    `json:"target,omitempty"` // a process; "" means all
	From   time.Time `json:"from"`
	Until  time.Time `json:"until,omitzero"` // when it was healed
}

// Log records the injected faults. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	done []Done
}

// Begin records that a fault is injected now. The caller calls healed when the fault ends.
func (l *Log) Begin(kind, target string) (healed func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.done)
	l.done = append(l.done, Done{Kind: kind, Target: target, From: time.Now()})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.done[i].Until = time.Now()
	}
}

// All returns a copy of the log.
func (l *Log) All() []Done {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Done(nil), l.done...)
}

// Count returns the number of faults of a kind.
func (l *Log) Count(kind string) (n int) {
	for _, d := range l.All() {
		if d.Kind == kind {
			n++
		}
	}
	return n
}
