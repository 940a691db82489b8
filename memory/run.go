package memory

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// abandonAfter is how long handlers have to return after they were cut off.
const abandonAfter = 8 * time.Second

// Run works until ctx ends. Then it accepts no more jobs, works on those already accepted for the grace period, cuts
// off the rest, and returns nil. It drops jobs that wait for another attempt at once. It may be called once. It returns
// an error if handlers ignore that they were cut off.
func (q *Queue) Run(ctx context.Context) error {
	if q.started.Swap(true) {
		return errors.New("memory: Run was called before")
	}
	w := &workers{store: q.store, base: context.WithoutCancel(ctx)}
	for range q.config.Concurrency {
		w.working.Go(w.work)
	}
	tick := time.NewTicker(max(min(q.config.Keep, time.Minute), time.Second))
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			q.store.mu.Lock()
			q.store.forget(now)
			q.store.mu.Unlock()
		case <-ctx.Done():
			return q.drain(w)
		}
	}
}

// drain stops in good order.
func (q *Queue) drain(w *workers) error {
	q.store.stop(w.base)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.working.Wait()
	}()
	grace := time.NewTimer(max(q.config.GracePeriod, 0))
	defer grace.Stop()
	select {
	case <-finished:
		return nil
	case <-grace.C:
		q.store.cutOff(w.base)
	}
	abandoned := time.NewTimer(abandonAfter)
	defer abandoned.Stop()
	select {
	case <-finished:
		return nil
	case <-abandoned.C:
		q.store.mu.Lock()
		defer q.store.mu.Unlock()
		return fmt.Errorf("memory: %d jobs still ran %s after they were cut off", len(q.store.running), abandonAfter)
	}
}

// codeShutdown is the error code of jobs lost in a stop.
const codeShutdown = "shutdown"
