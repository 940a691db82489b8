package dispatcher

import (
	"context"
	"fmt"
	"time"
)

// A handler learns that its job was cancelled at once when a notification arrives, and otherwise within a second of the
// request and of its own start: cancelTick + cancelInterval after its first cancelTick. While all handlers start and
// return within cancelAfter, no query runs, whatever notifications arrive. A job that waits in this process counts like
// one that runs: if it is cancelled after it has waited for about a second, it does not start.
const (
	cancelTick     = 100 * time.Millisecond
	cancelAfter    = 400 * time.Millisecond // no query runs unless some handler has run this long
	cancelInterval = 700 * time.Millisecond // between looks
	cancelSpacing  = 250 * time.Millisecond // between looks when a notification arrived, however many do
)

// watchCancellations ends the contexts of handlers whose jobs were cancelled, until ctx ends. It looks only while some
// handler has been running for a while. Nothing depends on it: a missed request is found when the attempt is settled,
// or when its lease lapses.
func (l *leases) watchCancellations(ctx context.Context) {
	tick := time.NewTicker(cancelTick)
	defer tick.Stop()
	var looked, searched time.Time // when it last looked for requests, and for long-running handlers
	woken := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			woken = true
		case <-tick.C:
		}
		now := time.Now()
		wait := cancelInterval
		if woken {
			wait = cancelSpacing
		}
		if now.Sub(looked) < wait || now.Sub(searched) < cancelTick/2 { // thousands of jobs may be held
			continue
		}
		woken, searched = false, now
		running := l.longRunning(now)
		if len(running) == 0 {
			continue
		}
		looked = now
		if err := l.endCancelled(ctx, running); err != nil && ctx.Err() == nil {
			l.health.Failed(err)
			l.health.Complain(ctx, "cancelled jobs not looked for", err)
		}
	}
}

// poke makes watchCancellations look at once; it never blocks.
func (l *leases) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// longRunning returns the attempts to ask about: none until some handler has been running long enough.
func (l *leases) longRunning(now time.Time) []*attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var running []*attempt
	long := false
	for a := range l.held {
		if age := a.age(now, cancelAfter); age >= cancelTick {
			running = append(running, a)
			long = long || age >= cancelAfter
		}
	}
	if !long {
		return nil
	}
	return running
}

func (l *leases) endCancelled(ctx context.Context, running []*attempt) error {
	bound, cancel := bounded(ctx)
	defer cancel()
	ids, epochs := keysOf(running)
	byKey := make(map[leaseKey]*attempt, len(running))
	for i, a := range running {
		byKey[leaseKey{ids[i], epochs[i]}] = a
	}
	asked, err := l.db.ListCancelRequests(bound, ids, epochs)
	if err != nil {
		return fmt.Errorf("look for cancelled jobs among %d: %w", len(running), err)
	}
	for _, row := range asked {
		byKey[leaseKey{row.ID, row.Epoch}].end(ErrCancelled)
	}
	return nil
}
