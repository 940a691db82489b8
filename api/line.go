package api

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/posthaste-dev/posthaste/internal/callers"
)

// slots is a number of slots, of which one caller may have three quarters of those that the others leave.
type slots struct {
	most, taken int
	of          map[caller]int
}

func newSlots(most int) slots { return slots{most: most, of: map[caller]int{}} }

// has reports whether there is a slot for the caller.
func (s *slots) has(who caller) bool {
	left := s.most - (s.taken - s.of[who]) // by others
	return s.taken < s.most && s.of[who] < (3*left+3)/4
}

// take takes a slot if there is one for the caller.
func (s *slots) take(who caller) bool {
	if !s.has(who) {
		return false
	}
	s.taken++
	s.of[who]++
	return true
}

func (s *slots) give(who caller) {
	s.taken--
	if s.of[who]--; s.of[who] == 0 {
		delete(s.of, who)
	}
}

// line gives out slots. Those who find none wait in line. The next free slot goes to the caller that has the fewest:
// one whose requests all take long, or wait for the same lock, leaves slots to the others.
type line struct {
	mu      sync.Mutex
	working slots
	waiting slots
	queue   []*waiter // in the order of arrival
}

type waiter struct {
	who  caller
	turn chan struct{} // closed when its turn comes
}

// unlimited is the length of a line that something else limits: the admission.
const unlimited = 1 << 20

func newLine(working, waiting int) *line {
	return &line{working: newSlots(working), waiting: newSlots(waiting)}
}

// take takes a slot for the caller of a request, who waits for it as long as the request lasts. The request calls leave
// when it is done with the slot.
func (l *line) take(ctx context.Context) (leave func(), err error) {
	who := callers.Of(principal(ctx))
	leave = func() { l.leave(who) }
	l.mu.Lock()
	w, refused := l.wait(who)
	l.mu.Unlock()
	switch {
	case refused:
		return nil, overloaded.because("Its queue is full.").after(1)
	case w == nil:
		return leave, nil
	}
	select {
	case <-w.turn:
		return leave, nil
	case <-ctx.Done():
		if !l.withdraw(w) { // its turn came at this very moment
			leave()
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, overloaded.because("The request waited for its turn in vain.").after(1)
		}
		return nil, ctx.Err()
	}
}

// wait takes a slot, or a place in the line; in the latter case w is not nil. Its caller holds mu.
func (l *line) wait(who caller) (w *waiter, refused bool) {
	if l.working.take(who) {
		return nil, false
	}
	if !l.waiting.take(who) {
		return nil, true
	}
	w = &waiter{who, make(chan struct{})}
	l.queue = append(l.queue, w)
	return w, false
}

// withdraw removes the waiter from the line. It returns false if the waiter is no longer there.
func (l *line) withdraw(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.queue, w)
	if at < 0 {
		return false
	}
	l.queue = slices.Delete(l.queue, at, at+1)
	l.waiting.give(w.who)
	return true
}

// leave releases a slot and gives the free ones to those who wait: to callers with fewer slots first, and among these
// in the order of arrival.
func (l *line) leave(who caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working.give(who)
	for {
		next := -1
		for i, w := range l.queue {
			if l.working.has(w.who) && (next < 0 || l.working.of[w.who] < l.working.of[l.queue[next].who]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := l.queue[next]
		l.queue = slices.Delete(l.queue, next, next+1)
		l.working.take(w.who)
		l.waiting.give(w.who)
		close(w.turn)
	}
}
