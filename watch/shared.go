package watch

import (
	"context"
	"maps"
	"sync"
	"time"
)

// shared are looks at the database by what they are for. Its zero value has none.
type shared[K comparable, T any] struct {
	mu     sync.Mutex
	latest map[K]*latest[T]
}

// look returns what was found no longer ago than that, or a little longer if it took long to find: see latest. Beyond
// so many looks, only those that go on are remembered.
func (s *shared[K, T]) look(ctx context.Context, of K, long time.Duration, most int,
	find func(context.Context) (T, error),
) (T, error) {
	s.mu.Lock()
	l := s.latest[of]
	if !l.serves(long) {
		if s.latest == nil {
			s.latest = map[K]*latest[T]{}
		}
		if len(s.latest) >= most { // a look that goes on is shared until it ends
			maps.DeleteFunc(s.latest, func(_ K, l *latest[T]) bool { return l.over() })
		}
		l = begin(lookWithin, find)
		s.latest[of] = l
	}
	s.mu.Unlock()
	return l.wait(ctx)
}

// known returns what was found no longer ago than that, without looking.
func (s *shared[K, T]) known(of K, long time.Duration) (found T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.latest[of]
	if l == nil || !l.over() || l.err != nil || time.Since(l.begun) >= long {
		return found, false
	}
	return l.found, true
}

// forget drops what was found: the next caller looks again.
func (s *shared[K, T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = nil
}
