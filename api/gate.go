package api

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/access"
)

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

// gate bounds the requests that are worked on at once and those that wait for it. What
// does not fit is refused soon: a client learns more from a 429 than from a
// timeout, and the server has the time for those that it took. One caller, whose
// requests may all wait for the same lock, leaves places to the others.
type gate struct {
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

// slots are places of which one caller may have three quarters of what others leave.
type slots struct {
	most, taken int
	of          map[caller]int
}

func newSlots(most int) slots { return slots{most: most, of: map[caller]int{}} }

// take takes a place, if there is one for the caller.
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

func newGate(working, waiting int) *gate {
	return &gate{working: newSlots(working), waiting: newSlots(waiting), refusals: make(chan struct{}, maxRefusals), free: time.Now()}
}

// enter returns once there is room. The request calls leave when it is done. One that
// is refused gives up what it keeps, by giveUp, before its refusal is held back.
func (g *gate) enter(ctx context.Context, of access.Principal, giveUp func()) (leave func(), err error) {
	who := caller{of.Tenant, of.Name}
	leave = func() { g.leave(who) }
	w, refused := g.wait(who)
	switch {
	case refused:
		giveUp()
		return nil, g.refuse(ctx, "Its queue is full.")
	case w == nil:
		return leave, nil
	}
	most := g.patience()
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-w.turn:
		return leave, nil
	case <-patience.C:
		if !g.withdraw(w) { // it has come to its turn this very moment
			return leave, nil
		}
		giveUp()
		return nil, g.refuse(ctx, "The request waited "+most.String()+" in vain.")
	case <-ctx.Done():
		if !g.withdraw(w) {
			leave()
		}
		return nil, ctx.Err()
	}
}

// wait takes a place, or one in the queue; then the waiter is not nil.
func (g *gate) wait(who caller) (w *waiter, refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.working.take(who) {
		if len(g.queue) == 0 {
			g.free = time.Now()
		}
		return nil, false
	}
	if !g.waiting.take(who) {
		return nil, true
	}
	w = &waiter{who, make(chan struct{})}
	g.queue = append(g.queue, w)
	return w, false
}

// withdraw takes the waiter out of the queue. It returns false if it is there no more.
func (g *gate) withdraw(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.queue, w)
	if at < 0 {
		return false
	}
	g.queue = slices.Delete(g.queue, at, at+1)
	g.waiting.give(w.who)
	return true
}

// leave gives a place back, and has those who waited longest take what is free.
func (g *gate) leave(who caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.working.give(who)
	g.queue = slices.DeleteFunc(g.queue, func(w *waiter) bool {
		if !g.working.take(w.who) {
			return false
		}
		g.waiting.give(w.who)
		close(w.turn)
		return true
	})
}

// patience is how long a request that comes now waits.
func (g *gate) patience() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.free) > queueBusy {
		return crowdWait
	}
	return queueWait
}

// refuse holds the refusal back for a while, and says when to ask again.
func (g *gate) refuse(ctx context.Context, why string) error {
	if err := g.hold(ctx); err != nil {
		return err
	}
	return overloaded.because(why).after(1)
}

// hold holds a refusal back. The error is ctx's: nobody waits for it any more.
func (g *gate) hold(ctx context.Context) error {
	select {
	case g.refusals <- struct{}{}:
		defer func() { <-g.refusals }()
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
