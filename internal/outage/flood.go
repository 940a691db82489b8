package outage

import (
	"sync"
	"time"
)

// A Flood lets the first few lines of each sort be logged and counts the others, which it sums up every ten seconds.
// Its zero value is ready to use once Summary is set. It is safe for concurrent use.
type Flood struct {
	// Summary logs that n lines of a sort were left out. last is the argument of Logs for the last of them.
	Summary func(n int, last any)

	mu    sync.Mutex
	sorts map[string]*sort
	ended bool
}

type sort struct {
	logged, left int
	last         any
	timer        *time.Timer
}

const (
	logged   = 10   // lines of a sort in ten seconds
	maxSorts = 1000 // sorts that are counted; lines of other sorts are logged
)

// Logs reports whether to log a line of the sort. If not, it counts the line.
func (f *Flood) Logs(what string, line any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sorts[what]
	switch {
	case s != nil && s.logged == logged:
		s.left, s.last = s.left+1, line
		return false
	case s != nil:
		s.logged++
	case len(f.sorts) < maxSorts && !f.ended:
		if f.sorts == nil {
			f.sorts = map[string]*sort{}
		}
		f.sorts[what] = &sort{logged: 1, timer: time.AfterFunc(every, func() { f.sumUp(what) })}
	}
	return true
}

// sumUp ends ten seconds of a sort. While the flood lasts, all lines of the next ten seconds are summed up.
func (f *Flood) sumUp(what string) {
	f.mu.Lock()
	s := f.sorts[what]
	if s == nil { // End was faster
		f.mu.Unlock()
		return
	}
	n, last := s.left, s.last
	if s.left, s.last = 0, nil; n > 0 {
		s.timer.Reset(every)
	} else {
		delete(f.sorts, what)
	}
	f.mu.Unlock()
	if n > 0 {
		f.Summary(n, last)
	}
}

// End sums up the counted lines; from then on every line is logged.
func (f *Flood) End() {
	f.mu.Lock()
	sorts := f.sorts
	f.sorts, f.ended = nil, true
	f.mu.Unlock()
	for _, s := range sorts {
		s.timer.Stop()
		if s.left > 0 {
			f.Summary(s.left, s.last)
		}
	}
}
