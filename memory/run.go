package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// abandonAfter is how long handlers have to return once they were cut off.
const abandonAfter = 8 * time.Second

// Run works until ctx ends; then it takes no more jobs, carries out those that it
// has taken for the grace period, cuts off what is left, and returns nil. Jobs
// that wait for another attempt are dropped at once. It may be called once. It
// returns an error if handlers ignore that they were cut off.
func (q *Queue) Run(ctx context.Context) error {
	q.mu.Lock()
	if q.started {
		q.mu.Unlock()
		return errors.New("memory: Run was called before")
	}
	q.started, q.base = true, context.WithoutCancel(ctx)
	q.mu.Unlock()
	for range q.config.Workers {
		q.working.Go(q.work)
	}
	tick := time.NewTicker(max(min(q.config.Keep, time.Minute), time.Second))
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			q.mu.Lock()
			q.forget(now)
			q.mu.Unlock()
		case <-ctx.Done():
			return q.drain()
		}
	}
}

// drain stops in good order.
func (q *Queue) drain() error {
	q.stop()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		q.working.Wait()
	}()
	grace := time.NewTimer(max(q.config.GracePeriod, 0))
	defer grace.Stop()
	select {
	case <-finished:
		return nil
	case <-grace.C:
		q.cutOff()
	}
	abandoned := time.NewTimer(abandonAfter)
	defer abandoned.Stop()
	select {
	case <-finished:
		return nil
	case <-abandoned.C:
		q.mu.Lock()
		defer q.mu.Unlock()
		return fmt.Errorf("memory: %d jobs still ran %s after they were cut off", len(q.running), abandonAfter)
	}
}

// stop takes no more jobs, and drops those that wait for another attempt: their
// time may be hours away.
func (q *Queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopping = true
	dropped := 0
	for _, r := range q.jobs {
		if r.timer != nil {
			q.unschedule(r)
			q.end(r, outbox.Cancelled, codeShutdown, "the process stopped before another attempt")
			dropped++
		}
	}
	if dropped > 0 {
		q.log.LogAttrs(q.base, slog.LevelWarn, "jobs in memory dropped: they waited for another attempt", slog.Int("jobs", dropped))
	}
	q.came.Broadcast()
}

// cutOff ends the grace period.
func (q *Queue) cutOff() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.log.LogAttrs(q.base, slog.LevelWarn, "jobs in memory lost: the grace period is over", slog.Int("cut_off", len(q.running)), slog.Int("not_started", len(q.pending)))
	for r := range q.running {
		r.cancel(dispatcher.ErrShutdown)
	}
	for _, r := range q.pending {
		q.metrics.waiting.Dec()
		q.end(r, outbox.Cancelled, codeShutdown, "the process stopped before it started")
	}
	q.pending = nil
	q.came.Broadcast()
}

// codeShutdown is the error code of jobs that were lost in a stop.
const codeShutdown = "shutdown"

// work carries out jobs until a stop, and then until none waits.
func (q *Queue) work() {
	for a := q.take(); a != nil; a = q.take() {
		q.attempt(a)
	}
}

// take waits for a job and begins its attempt; nil says that there will be none.
// Both are one step: in between, nobody who cancels would find the job.
func (q *Queue) take() *attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pending) == 0 && !q.stopping {
		q.came.Wait()
	}
	if len(q.pending) == 0 {
		return nil
	}
	r := q.pending[0]
	q.pending[0] = nil
	q.pending = q.pending[1:]
	q.metrics.waiting.Dec()
	return q.begin(r)
}
