package api

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// queueWait is how long a request waits for its turn, at most. Once every
	// request has had to wait for queueBusy, it is crowdWait: a queue that does not
	// empty is no burst, and what waits in it only comes later, all of it.
	queueWait = 500 * time.Millisecond
	queueBusy = 200 * time.Millisecond
	crowdWait = 25 * time.Millisecond

	// refusalWait is how long a refusal is held back, on average. A client that asks
	// again at once would have the process do nothing but refuse; held back, it costs
	// a fraction of what a request costs, and the processor is there for those that
	// were taken and for dispatchers.
	refusalWait = 200 * time.Millisecond
	maxRefusals = 4096 // held back at once; others are told at once

	// unknownRate is how many bearers that are not good are told so at once, in a
	// second; more are held back like refusals.
	unknownRate = 50
)

// gate bounds the requests that are worked on at once and those that wait for it. What
// does not fit is refused soon: a client learns more from a 429 than from a
// timeout, and the server has the time for those that it took.
type gate struct {
	working  chan struct{}
	waiting  chan struct{}
	refusals chan struct{}
	free     atomic.Int64 // when a request last did not have to wait, in ns since made
	made     time.Time
}

func newGate(working, waiting int) *gate {
	return &gate{
		working: make(chan struct{}, working), waiting: make(chan struct{}, waiting), refusals: make(chan struct{}, maxRefusals),
		made: time.Now(),
	}
}

// enter returns once there is room. The request calls leave when it is done. One that
// is refused gives up what it keeps, by giveUp, before its refusal is held back.
func (g *gate) enter(ctx context.Context, giveUp func()) (leave func(), err error) {
	select {
	case g.working <- struct{}{}:
		g.free.Store(int64(time.Since(g.made)))
		return g.leave, nil
	default:
	}
	select {
	case g.waiting <- struct{}{}:
	default:
		giveUp()
		return nil, g.refuse(ctx, "Its queue is full.")
	}
	most := g.patience()
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case g.working <- struct{}{}:
		<-g.waiting
		return g.leave, nil
	case <-patience.C:
		<-g.waiting
		giveUp()
		return nil, g.refuse(ctx, "The request waited "+most.String()+" in vain.")
	case <-ctx.Done():
		<-g.waiting
		return nil, ctx.Err()
	}
}

func (g *gate) leave() { <-g.working }

// patience is how long a request that comes now waits.
func (g *gate) patience() time.Duration {
	if time.Since(g.made)-time.Duration(g.free.Load()) > queueBusy {
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
