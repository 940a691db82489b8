package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Queue is what waits in a queue and whether it is worked.
type Queue struct {
	Name        string
	PausedSince time.Time               // zero unless it is paused
	MaxRunning  int                     // see [Limits]; 0 is any number
	Rate        Rate                    // see [Limits]; zero is any
	Jobs        map[outbox.Status]int64 // open jobs; a status without any is left out
}

const maxQueues = 1000

// Queues returns the queues that have open jobs, or are paused or limited, by name,
// the first 1000 of them. It counts every open job: with a million that takes about half a
// second.
func (o *Operator) Queues(ctx context.Context) ([]Queue, error) {
	return o.QueuesOf(ctx, outbox.ID{})
}

// QueuesOf is Queues with the jobs of one tenant alone; the zero tenant is any.
func (o *Operator) QueuesOf(ctx context.Context, tenant outbox.ID) ([]Queue, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListQueues(ctx, tenantOrAny(tenant), maxQueues)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	var queues []Queue
	for _, row := range rows {
		if len(queues) == 0 || queues[len(queues)-1].Name != row.Queue {
			q := Queue{Name: row.Queue, PausedSince: row.PausedAt.Time, Jobs: map[outbox.Status]int64{}}
			if row.MaxRunning != nil {
				q.MaxRunning = int(*row.MaxRunning)
			}
			if row.Rate != nil {
				q.Rate = Rate{Starts: int(*row.Rate), Interval: seconds(row.RateSeconds)}
			}
			queues = append(queues, q)
		}
		if row.Status != "" {
			queues[len(queues)-1].Jobs[outbox.Status(row.Status)] = row.Jobs
		}
	}
	return queues, nil
}

// Pause stops claims of a queue, in all processes, from the next one on; jobs that
// are running or claimed go on. The queue need not exist yet. Pausing a paused
// queue changes nothing.
func (o *Operator) Pause(ctx context.Context, queue string) error {
	if err := validQueue(queue); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.db.PauseQueue(ctx, sqlgen.PauseQueueParams{Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason}); err != nil {
		return fmt.Errorf("pause queue %s: %w", queue, err)
	}
	return nil
}

// Resume lets claims of a queue go on and wakes the dispatchers. Resuming a queue
// that is not paused changes nothing.
func (o *Operator) Resume(ctx context.Context, queue string) error {
	if err := validQueue(queue); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.db.ResumeQueue(ctx, sqlgen.ResumeQueueParams{Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason}); err != nil {
		return fmt.Errorf("resume queue %s: %w", queue, err)
	}
	return nil
}

func validQueue(queue string) error {
	if queue == "" || len(queue) > outbox.MaxNameBytes {
		return &outbox.InvalidError{Field: "queue", Reason: fmt.Sprintf("is %d bytes long, want 1 to %d", len(queue), outbox.MaxNameBytes)}
	}
	return validTexts(map[string]string{"queue": queue})
}
