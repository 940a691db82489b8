package relay

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What is kept for other sinks at most. One that is further behind reads for itself, and nobody waits for it. With less
// sinks that read as fast as they can would lose each other whenever one of them does not run for a while.
const (
	maxLooks     = 16
	maxLookBytes = 2 * maxPageBytes
)

// lookLife is for how long.
var lookLife = time.Second

// shared is what the sinks of a process have read of the log in the last moments. One of them looks for what is newer
// than its position; those that come to a position within what it has found, or to the same one while it looks, take
// that. So sinks that are at the end of the log, or that go through it side by side, read it once, and the messages of
// an event are made once. Cursors, leases and holes stay each sink's own: only newer events are shared.
//
// Whether there is more. A look that was not full has seen all events that were said to be stored before it began, and
// no others:
//
//	sink A    looks behind 6 ...              sees 7; at the end
//	event                         8, wakes A and B
//	sink B                                           takes 7 from A; at the end?
//
// B has used up its wake-up, and would sleep. So the look says how many wake-ups there were when it began, and those
// that take from it look again if there were more since.
//
// Holes. A sink looks at its holes, and for the transactions that run, once it has the newer events. They were seen
// with a snapshot that is no newer than if it had read them itself, which is all that the comment of cursor asks for.
//
// Failovers and crashes. Events are of the timeline that the look has checked, and a cursor of another one gets none of
// them. After a crash of the server there may be other events at the same positions, if commits did not wait for the
// disk:
//
//	sink A    looks behind 6, sees 7
//	server                             crashes, loses 7, gives 7 out again
//	sink B                                                                    owns, from 6 on: takes A's 7?
//
// A sink that begins anew forgets what was read before, for all of them.
type shared struct {
	wakes atomic.Int64 // how many there were: counted before sinks are woken

	mu    sync.Mutex
	looks []*look // the newest last
}

// look is what one sink has found behind a position.
type look struct {
	timeline string
	top      int64
	began    time.Time
	wakes    int64 // of shared, when it began
	done     chan struct{}

	// bytes is what events count for; 0 while the look runs. It is of shared's lock, for trim adds them up
	// meanwhile.
	bytes int

	// once done is closed
	events []Event
	full   bool
	err    error
}

// newer returns the events of a timeline behind a position, at most maxBatch, and whether there may be more. If nobody
// has them it calls read, which returns all there are or a full page. Events are other sinks', too: they are not to be
// changed.
func (s *shared) newer(ctx context.Context, timeline string, top int64, read func() ([]Event, error)) ([]Event, bool, error) {
	for {
		l, isOurs := s.find(timeline, top)
		if isOurs {
			l.events, l.err = read()
			s.end(l)
			return l.events, l.full, l.err
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		if l.err == nil { // or it was another's context that has ended
			return l.events[l.behind(top):], l.full || l.wakes != s.wakes.Load(), nil
		}
	}
}

// find returns a look that has events behind a position or is about to, or a new one, which the caller carries out.
func (s *shared) find(timeline string, top int64) (l *look, isOurs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = slices.DeleteFunc(s.looks, func(l *look) bool { return time.Since(l.began) > lookLife })
	for _, l := range s.looks {
		if l.timeline == timeline && l.has(top) {
			return l, false
		}
	}
	l = &look{timeline: timeline, top: top, began: time.Now(), wakes: s.wakes.Load(), done: make(chan struct{})}
	s.looks = append(s.looks, l)
	s.trim()
	return l, true
}

// trim forgets the oldest looks, down to what is kept. The caller has the lock.
func (s *shared) trim() {
	n, bytes := len(s.looks), 0
	for n > 0 && len(s.looks)-n < maxLooks && bytes < maxLookBytes {
		n--
		bytes += s.looks[n].bytes
	}
	s.looks = slices.Delete(s.looks, 0, n)
}

// has reports whether a look has the first event behind a position. The caller has shared's lock.
func (l *look) has(top int64) bool {
	select {
	case <-l.done:
		return l.top <= top && l.behind(top) < len(l.events)
	default:
		return l.top == top
	}
}

// behind is the index of the first event behind a position.
func (l *look) behind(top int64) int {
	n, _ := slices.BinarySearchFunc(l.events, top+1, func(e Event, position int64) int { return int(e.Position - position) })
	return n
}

// end lets others have what a look has found.
func (s *shared) end(l *look) {
	bytes := bytesOf(l.events)
	l.full = len(l.events) >= maxBatch || bytes >= maxPageBytes
	made := make([]envelopes, len(l.events))
	for i := range l.events {
		l.events[i].made = &made[i]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.bytes = bytes
	close(l.done)
	if len(l.events) == 0 { // it says nothing of what comes next, or has failed
		s.looks = slices.DeleteFunc(s.looks, func(other *look) bool { return other == l })
	}
}

// forget has sinks read for themselves what was read so far.
func (s *shared) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = nil
}
