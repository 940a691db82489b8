package relay

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// These limit what is kept for other sinks. A sink that is further behind reads for itself, and no other waits for it.
// With lower limits, sinks that read as fast as they can would lose each other whenever one of them pauses for a while.
const (
	maxLooks     = 16
	maxLookBytes = 2 * maxPageBytes
)

// lookLife is how long a look is kept.
var lookLife = time.Second

// shared holds what the sinks of a process have read of the log in the last moments. One sink looks for events newer
// than its position; others that reach a position within its result, or the same position while it looks, use that
// result. So sinks that are at the end of the log, or that go through it together, read it once, and each event is
// turned into messages once. Cursors, leases and holes remain each sink's own: only newer events are shared.
//
// Whether there is more. A look that was not full has seen all events that were announced before it began, and no
// others:
//
//	sink A    looks behind 6 ...              sees 7; at the end
//	event                         8, wakes A and B
//	sink B                                           takes 7 from A; at the end?
//
// B has used up its wake-up and would sleep. So each look records how many wake-ups there were when it began, and a
// sink that uses its result looks again if there were more since.
//
// Holes. A sink looks at its holes, and for running transactions, once it has the newer events. They were seen with a
// snapshot that is no newer than if the sink had read them itself, which is all that the comment of cursor demands.
//
// Failovers and crashes. Events belong to the timeline that the look has checked, and a cursor of another timeline gets
// none of them. After a crash of the server, the same positions may hold other events, if commits did not wait for the
// disk:
//
//	sink A    looks behind 6, sees 7
//	server                             crashes, loses 7, gives 7 out again
//	sink B                                                                    owns, from 6 on: takes A's 7?
//
// A sink that begins anew therefore discards earlier results, for all sinks.
type shared struct {
	wakes atomic.Int64 // how many wake-ups there were: counted before sinks are woken

	mu    sync.Mutex
	looks []*look // newest last
}

// look is the result of one sink's query for events after a position.
type look struct {
	timeline string
	top      int64
	began    time.Time
	wakes    int64 // the count of shared when the look began
	done     chan struct{}

	// bytes is what events count for; 0 while the look runs. The lock of shared guards it, because trim adds it up
	// meanwhile.
	bytes int

	// Valid once done is closed.
	events []Event
	full   bool
	err    error
}

// newer returns the events of a timeline after a position, at most maxBatch, and whether there may be more. If no look
// has them, it calls read, which returns all events or a full page. The events are shared with other sinks and must not
// be changed.
func (s *shared) newer(ctx context.Context, timeline string, top int64, read func() ([]Event, error)) ([]Event,
	bool, error,
) {
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
		if l.err == nil { // otherwise, the context of another sink may have ended
			return l.events[l.behind(top):], l.full || l.wakes != s.wakes.Load(), nil
		}
	}
}

// find returns a look that has events after a position or is about to, or a new one, which the caller executes.
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

// trim drops the oldest looks until the limits are met. The caller holds the lock.
func (s *shared) trim() {
	n, bytes := len(s.looks), 0
	for n > 0 && len(s.looks)-n < maxLooks && bytes < maxLookBytes {
		n--
		bytes += s.looks[n].bytes
	}
	s.looks = slices.Delete(s.looks, 0, n)
}

// has reports whether a look has the first event after a position. The caller holds shared's lock.
func (l *look) has(top int64) bool {
	select {
	case <-l.done:
		return l.top <= top && l.behind(top) < len(l.events)
	default:
		return l.top == top
	}
}

// behind returns the index of the first event after a position.
func (l *look) behind(top int64) int {
	n, _ := slices.BinarySearchFunc(l.events, top+1, func(e Event, position int64) int {
		return int(e.Position - position)
	})
	return n
}

// end makes the result of a look available to other sinks.
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
	if len(l.events) == 0 { // empty or failed: it says nothing of what comes next
		s.looks = slices.DeleteFunc(s.looks, func(other *look) bool { return other == l })
	}
}

// forget discards earlier results, so that sinks read for themselves.
func (s *shared) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = nil
}
