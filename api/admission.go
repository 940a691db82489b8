package api

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// caller is who has a share of what there is.
type caller = callers.Caller

const (
	// queueWait is how long a request waits for its turn, at most. Once some
	// have had to wait for queueBusy without an end, it is crowdWait: a queue that does not
	// empty is no burst, and what waits in it only comes later, all of it.
	queueWait = 500 * time.Millisecond
	queueBusy = 200 * time.Millisecond
	crowdWait = 25 * time.Millisecond

	// refusalWait is how long a refusal is held back, on average. A client that asks
	// again at once would have the process do nothing but refuse; held back, it costs
	// a fraction of what a request costs, and the processor is there for those that
	// were taken and for dispatchers.
	refusalWait = 200 * time.Millisecond
	maxRefusals = 4096 // held back at once; others are refused at once

	// unknownRate is how many bad bearers are refused at once, in a second; more
	// are held back like other refusals.
	unknownRate = 50
)

// admission bounds the requests that are worked on at once and those that wait for it. What
// does not fit is refused soon: a client learns more from a 429 than from a
// timeout, and the server has the time for those that it took. One caller, whose
// requests may all wait for the same lock, leaves slots to the others.
type admission struct {
	refusals chan struct{}

	mu      sync.Mutex
	working slots
	waiting slots
	queue   []*waiter // in the order in which they came
	free    time.Time // when nobody waited last
}

type waiter struct {
	who  caller
	turn chan struct{} // closed when it is worked on
}

// slots are a number of which one caller may have three quarters of what the others leave.
type slots struct {
	most, taken int
	of          map[caller]int
}

func newSlots(most int) slots { return slots{most: most, of: map[caller]int{}} }

// take takes a slot, if there is one for the caller.
func (s *slots) take(who caller) bool {
	left := s.most - (s.taken - s.of[who]) // by others
	if s.taken >= s.most || s.of[who] >= (3*left+3)/4 {
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

func newAdmission(working, waiting int) *admission {
	return &admission{working: newSlots(working), waiting: newSlots(waiting), refusals: make(chan struct{}, maxRefusals), free: time.Now()}
}

// enter returns once there is room. The request calls leave when it is done. One that
// is refused gives up what it keeps, by giveUp, before its refusal is held back.
func (a *admission) enter(ctx context.Context, of access.Principal, giveUp func()) (leave func(), err error) {
	who := callers.Of(of)
	leave = func() { a.leave(who) }
	w, refused := a.wait(who)
	switch {
	case refused:
		giveUp()
		return nil, a.refuse(ctx, "Its queue is full.")
	case w == nil:
		return leave, nil
	}
	most := a.patience()
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-w.turn:
		return leave, nil
	case <-patience.C:
		if !a.withdraw(w) { // it has come to its turn this very moment
			return leave, nil
		}
		giveUp()
		return nil, a.refuse(ctx, "The request waited "+most.String()+" in vain.")
	case <-ctx.Done():
		if !a.withdraw(w) {
			leave()
		}
		return nil, ctx.Err()
	}
}

// wait takes a slot, or a turn in the queue; then the waiter is not nil.
func (a *admission) wait(who caller) (w *waiter, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working.take(who) {
		if len(a.queue) == 0 {
			a.free = time.Now()
		}
		return nil, false
	}
	if !a.waiting.take(who) {
		return nil, true
	}
	w = &waiter{who, make(chan struct{})}
	a.queue = append(a.queue, w)
	return w, false
}

// withdraw takes the waiter out of the queue. It returns false if it is there no more.
func (a *admission) withdraw(w *waiter) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.Index(a.queue, w)
	if at < 0 {
		return false
	}
	a.queue = slices.Delete(a.queue, at, at+1)
	a.waiting.give(w.who)
	return true
}

// leave gives a slot back, and has those who waited longest take what is free.
func (a *admission) leave(who caller) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.working.give(who)
	a.queue = slices.DeleteFunc(a.queue, func(w *waiter) bool {
		if !a.working.take(w.who) {
			return false
		}
		a.waiting.give(w.who)
		close(w.turn)
		return true
	})
}

// patience is how long a request that comes now waits.
func (a *admission) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.free) > queueBusy {
		return crowdWait
	}
	return queueWait
}

// refuse holds the refusal back for a while, and says when to ask again.
func (a *admission) refuse(ctx context.Context, why string) error {
	if err := a.hold(ctx); err != nil {
		return err
	}
	return overloaded.because(why).after(1)
}

// hold holds a refusal back. The error is ctx's: nobody waits for it any more.
func (a *admission) hold(ctx context.Context) error {
	select {
	case a.refusals <- struct{}{}:
		defer func() { <-a.refusals }()
	default:
		return nil
	}
	held := time.NewTimer(refusalWait/2 + rand.N(refusalWait)) // not all of them together again
	defer held.Stop()
	select {
	case <-held.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
