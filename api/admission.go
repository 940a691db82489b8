package api

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// caller identifies who has a share of a resource.
type caller = callers.Caller

const (
	// queueWait is the longest that a request waits for its turn. Once requests of its caller have been waiting for
	// queueBusy without a break, the limit is crowdWait: a queue that does not empty is no burst, and waiting in it
	// only delays every request.
	queueWait = 500 * time.Millisecond
	queueBusy = 200 * time.Millisecond
	crowdWait = 25 * time.Millisecond

	// refusalWait is how long a refusal is delayed, on average. A client that retries at once would otherwise occupy
	// the process with refusals; a delayed refusal costs a fraction of a request, which leaves the processor to
	// accepted requests and dispatchers.
	refusalWait = 200 * time.Millisecond
	maxRefusals = 4096 // delayed at once; others are sent at once

	// unknownRate is how many invalid bearers per second are refused at once; more are delayed like other refusals.
	unknownRate = 50
)

// admission limits the requests in progress and those that wait for admission. Others are refused soon: a client learns
// more from a 429 than from a timeout, and the server has time for the requests that it accepted. A caller whose
// requests all wait for the same lock leaves slots to the others.
type admission struct {
	*line
	refusals chan struct{}
	free     map[caller]time.Time // when none of a caller's requests waited; of callers with requests here
}

func newAdmission(working, waiting int) *admission {
	return &admission{
		line:     newLine(working, waiting),
		refusals: make(chan struct{}, maxRefusals), free: map[caller]time.Time{},
	}
}

// acquire returns once the request is admitted. The request calls leave when it is done. A refused request releases its
// resources, by giveUp, before its refusal is delayed.
func (a *admission) acquire(ctx context.Context, of access.Principal, giveUp func()) (leave func(), err error) {
	who := callers.Of(of)
	leave = func() { a.leave(who) }
	w, refused := a.arrive(who)
	switch {
	case refused:
		giveUp()
		return nil, a.refuse(ctx, "Its queue is full.")
	case w == nil:
		return leave, nil
	}
	most := a.patience(who)
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-w.turn:
		return leave, nil
	case <-patience.C:
		if !a.withdraw(w) { // its turn came at this very moment
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

// arrive takes a slot, or a place in the line; in the latter case w is not nil.
func (a *admission) arrive(who caller) (w *waiter, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting.of[who] == 0 {
		a.free[who] = time.Now()
	}
	w, refused = a.wait(who)
	for other := range a.free {
		if other != who && a.working.of[other]+a.waiting.of[other] == 0 {
			delete(a.free, other)
		}
	}
	return w, refused
}

// patience returns how long a request of a caller that arrives now waits.
func (a *admission) patience(who caller) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.free[who]) > queueBusy {
		return crowdWait
	}
	return queueWait
}

// refuse delays the refusal, and returns it with the time after which to retry.
func (a *admission) refuse(ctx context.Context, why string) error {
	if err := a.hold(ctx); err != nil {
		return err
	}
	return overloaded.because(why).after(1)
}

// hold delays a refusal. It returns ctx's error if the client has gone meanwhile.
func (a *admission) hold(ctx context.Context) error {
	select {
	case a.refusals <- struct{}{}:
		defer func() { <-a.refusals }()
	default:
		return nil
	}
	held := time.NewTimer(refusalWait/2 + rand.N(refusalWait)) // so that they do not all retry together
	defer held.Stop()
	select {
	case <-held.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
