package dispatcher

import (
	"context"
	"sync/atomic"
	"time"
)

// pace is a token bucket for wake-ups that find nothing. It holds three tokens and is refilled with
// fifty a second: anybody who can connect may send notifications. What finds jobs
// costs nothing, and so the first wake-up after a quiet time is answered at once.
//
// The own producer's wake-ups are not held up by those of others. Without that, N
// processes that enqueue and dispatch would hold up each other: each hears of every
// job, of its own for a second time, and of most of them when they have been claimed.
// But its jobs may all be for others; then its wake-ups take tokens like any, until
// one finds something.
type pace struct {
	own      atomic.Bool // the own producer has woken the queue, and it has not looked since
	ownFinds atomic.Bool // that found jobs the last time
	tokens   float64     // the claim loop's own
	counted  time.Time   // when the tokens were; the claim loop's own
}

const (
	maxTokens       = 3
	tokensPerSecond = 50
)

// wait waits until a look that may find nothing has a token; false if ctx ends first. found says that the last one
// found something, and wake is the waker's.
func (p *pace) wait(ctx context.Context, found bool, wake <-chan struct{}) bool {
	now := time.Now()
	p.tokens = min(p.tokens+now.Sub(p.counted).Seconds()*tokensPerSecond, maxTokens)
	p.counted = now
	if p.atOnce() {
		return true
	}
	if !found {
		p.tokens--
	}
	if p.tokens >= 0 {
		return true
	}
	refilled := time.NewTimer(time.Duration(-p.tokens / tokensPerSecond * float64(time.Second)))
	defer refilled.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-refilled.C:
			return true
		case <-wake: // the look that is waited for answers it, too
			if p.atOnce() {
				return true
			}
		}
	}
}

func (p *pace) atOnce() bool { return p.ownFinds.Load() && p.own.Load() }
