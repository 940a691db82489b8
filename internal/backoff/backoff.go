// Package backoff spaces out the retries of a loop that must never give up.
//
// Waits grow from Min to Max, doubling with every failure. Each is drawn from half to one and a half times its nominal
// length, so that processes that lost the same server do not come back in step:
//
//	var retry backoff.Backoff
//	for {
//		if err := work(ctx); err == nil {
//			retry.Reset()
//		} else if retry.Wait(ctx) != nil {
//			return
//		}
//	}
package backoff

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Defaults of the zero Backoff.
const (
	DefaultMin = 100 * time.Millisecond
	DefaultMax = 5 * time.Second
)

// ErrRanBefore is the error of a second call of a Run that may be called only once. Retrying does not help.
var ErrRanBefore = errors.New("method Run was called before")

// Backoff is a capped exponential backoff with jitter. The zero value is ready
// to use. It belongs to one loop: it is not safe for concurrent use.
type Backoff struct {
	Min time.Duration // nominal length of the first wait; zero means 100 ms
	Max time.Duration // no wait is longer than this; zero means 5 s

	nominal time.Duration // of the wait before; zero after Reset
}

// Wait blocks for the next, longer wait. It returns nil when the time has passed, and the cause of ctx as soon as ctx
// is done.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Next returns the length of the next wait, for loops with a timer of their own. Like Wait it counts as a failure.
func (b *Backoff) Next() time.Duration {
	// Two thirds of Max leave room for the jitter, which is thus never cut off: at the cap, waits still spread from a
	// third of Max to all of it.
	ceiling := max(1, cmp.Or(b.Max, DefaultMax)/3*2)
	switch {
	case b.nominal == 0:
		b.nominal = min(cmp.Or(b.Min, DefaultMin), ceiling)
	case b.nominal > ceiling/2:
		b.nominal = ceiling
	default:
		b.nominal *= 2
	}
	return b.nominal/2 + rand.N(b.nominal)
}

// Reset makes the next wait the shortest again. Call it after success.
func (b *Backoff) Reset() { b.nominal = 0 }

// Sleep blocks for d. It returns nil when the time has passed, and the cause of ctx as soon as ctx is done: at once if
// it is done already, also where d is zero or negative.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := context.Cause(ctx); err != nil || d <= 0 {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Every calls do at each interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func(now time.Time)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			do(now)
		}
	}
}

// Jitter returns d, a quarter shorter or longer at most, so that many processes do not act in step.
func Jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(max(1, d/2)) }
