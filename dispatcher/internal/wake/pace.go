package wake

import (
	"context"
	"time"
)

// Pace is a token bucket for wake-ups that find nothing. It holds three tokens and refills at fifty a second, because
// anybody who can connect may send notifications. A look that finds jobs costs no token, so the first wake-up after a
// quiet time is answered at once.
//
// Wake-ups of the attached producer do not wait because of wake-ups from elsewhere. Otherwise N processes that enqueue
// and dispatch would delay each other: each is notified of every job, of its own jobs for a second time, and of most
// jobs after they have been claimed. But the producer's jobs may all be for other processes; then its wake-ups take
// tokens like any other, until one finds something.
//
// Only the claim loop uses it.
type Pace struct {
	OwnFinds bool // the last look after a wake-up of the attached producer found jobs

	tokens  float64
	counted time.Time // when tokens was last computed
}

const (
	maxTokens       = 3
	tokensPerSecond = 50
)

// Wait waits for a token for a look that may find nothing; it reports false if ctx ends first. Room for known jobs ends
// the wait.
func (p *Pace) Wait(ctx context.Context, w *Waker) bool {
	if p.refill(); w.hasRoom.Swap(false) || p.tokens >= 1 || p.atOnce(w) {
		return true
	}
	refilled := time.NewTimer(time.Duration((1 - p.tokens) / tokensPerSecond * float64(time.Second)))
	defer refilled.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-refilled.C:
			return true
		case <-w.Signal: // the look that this waits for answers it, too
			if w.hasRoom.Swap(false) || p.atOnce(w) {
				return true
			}
		}
	}
}

// Looked takes the token of a look that has answered a wake-up and found nothing.
func (p *Pace) Looked(by By, found bool) {
	free := found || by == Producer && p.OwnFinds
	if by == Producer {
		p.OwnFinds = found
	}
	if p.refill(); !free {
		p.tokens = max(p.tokens-1, 0)
	}
}

func (p *Pace) refill() {
	now := time.Now()
	p.tokens = min(p.tokens+now.Sub(p.counted).Seconds()*tokensPerSecond, maxTokens)
	p.counted = now
}

func (p *Pace) atOnce(w *Waker) bool { return p.OwnFinds && w.woken.Load() == Producer }
