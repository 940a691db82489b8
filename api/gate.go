package api

import (
	"context"
	"time"
)

// queueWait is how long a request waits for its turn, at most.
const queueWait = 500 * time.Millisecond

// gate bounds the requests that are worked on at once and those that wait for it. What
// does not fit is refused at once: a client learns more from a 429 than from a
// timeout, and the server has the time for those that it took.
type gate struct {
	working chan struct{}
	waiting chan struct{}
}

func newGate(working, waiting int) *gate {
	return &gate{working: make(chan struct{}, working), waiting: make(chan struct{}, waiting)}
}

// enter returns once there is room. The request calls leave when it is done.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.working <- struct{}{}:
		return g.leave, nil
	default:
	}
	select {
	case g.waiting <- struct{}{}:
		defer func() { <-g.waiting }()
	default:
		return nil, overloaded.because("Its queue is full.").after(1)
	}
	patience := time.NewTimer(queueWait)
	defer patience.Stop()
	select {
	case g.working <- struct{}{}:
		return g.leave, nil
	case <-patience.C:
		return nil, overloaded.because("The request waited " + queueWait.String() + " in vain.").after(1)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *gate) leave() { <-g.working }
