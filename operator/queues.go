package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
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
	OldestDue   time.Time               // when the job that waits longest was due; zero if none is due
	// Unavailable has the kinds whose dependency was unavailable when a process tried them last, and since when. Only
	// [Operator.Queues] fills it.
	Unavailable map[string]time.Time
}

// MaxQueues is how many queues are listed at most.
const MaxQueues = 1000

// Queues returns the queues that have open jobs, or are paused or limited, by name,
// the first 1000 of them. It counts every open job: with a million that takes about half a
// second.
func (o *Operator) Queues(ctx context.Context) ([]Queue, error) {
	jobs, _, err := o.CountOpen(ctx, outbox.ID{})
	if err != nil {
		return nil, err
	}
	rules, err := o.QueueRules(ctx)
	if err != nil {
		return nil, err
	}
	queues := jobs.In(rules)
	return queues, o.addUnavailable(ctx, queues)
}

// addUnavailable adds the kinds that wait for what they need. The jobs that have found it away say so; the others,
// which their processes leave unclaimed meanwhile, are like any that wait.
func (o *Operator) addUnavailable(ctx context.Context, queues []Queue) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListUnavailableKinds(ctx, MaxQueues)
	if err != nil {
		return fmt.Errorf("list unavailable kinds: %w", err)
	}
	for _, row := range rows {
		i, found := slices.BinarySearchFunc(queues, row.Queue, func(q Queue, name string) int { return strings.Compare(q.Name, name) })
		if !found {
			continue
		}
		if queues[i].Unavailable == nil {
			queues[i].Unavailable = map[string]time.Time{}
		}
		queues[i].Unavailable[row.Kind] = row.Since.Time
	}
	return nil
}

// OpenJobs is what is open, by queue.
type OpenJobs map[string]OpenOfQueue

// OpenOfQueue is what is open of a queue; see [Queue].
type OpenOfQueue struct {
	Jobs      map[outbox.Status]int64
	OldestDue time.Time
}

func (j OpenJobs) add(row sqlgen.CountOpenJobsRow) {
	of := j[row.Queue]
	if of.Jobs == nil {
		of.Jobs = map[outbox.Status]int64{}
	}
	of.Jobs[outbox.Status(row.Status)] = row.Jobs
	if due := row.OldestDue.Time; !due.IsZero() && (of.OldestDue.IsZero() || due.Before(of.OldestDue)) {
		of.OldestDue = due
	}
	j[row.Queue] = of
}

// In returns the queues that have jobs or rules (see [Operator.QueueRules]), by name,
// the first 1000 of them. The maps of jobs are shared, not copied.
func (j OpenJobs) In(rules []Queue) []Queue {
	queues := map[string]Queue{}
	for name := range j {
		queues[name] = j.Of(Queue{Name: name})
	}
	for _, q := range rules {
		queues[q.Name] = j.Of(q)
	}
	var list []Queue
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		if len(list) < MaxQueues {
			list = append(list, queues[name])
		}
	}
	return list
}

// Of returns a queue with its jobs; see [OpenJobs.In].
func (j OpenJobs) Of(q Queue) Queue {
	of := j[q.Name]
	if q.Jobs, q.OldestDue = of.Jobs, of.OldestDue; q.Jobs == nil {
		q.Jobs = map[outbox.Status]int64{}
	}
	return q
}

// CountOpen counts the open jobs of a tenant or, if it is zero, of all. Then it also
// says how many of them are each tenant's: byTenant has every tenant that has any, but
// is nil if they and their queues are too many to remember. With a million jobs it takes
// about half a second.
func (o *Operator) CountOpen(ctx context.Context, tenant outbox.ID) (jobs OpenJobs, byTenant map[outbox.ID]OpenJobs, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.CountOpenJobs(ctx, pgvalue.UUIDOrNull(tenant), maxTenantRows)
	if err != nil {
		return nil, nil, fmt.Errorf("count the open jobs: %w", err)
	}
	jobs = OpenJobs{}
	if tenant.IsZero() && len(rows) == 0 {
		byTenant = map[outbox.ID]OpenJobs{}
	}
	for _, row := range rows {
		if !row.TenantID.Valid {
			jobs.add(row)
			continue
		}
		if byTenant == nil {
			byTenant = map[outbox.ID]OpenJobs{}
		}
		of := outbox.ID(row.TenantID.Bytes)
		if byTenant[of] == nil {
			byTenant[of] = OpenJobs{}
		}
		byTenant[of].add(row)
	}
	return jobs, byTenant, nil
}

// maxTenantRows bounds what CountOpen remembers of single tenants, some 10 MB.
const maxTenantRows = 50_000

// QueueRules returns the queues that are paused or limited, without their jobs, by
// name, the first 1000 of them.
func (o *Operator) QueueRules(ctx context.Context) ([]Queue, error) { return o.queueRules(ctx, nil) }

// QueueRule returns a queue without its jobs; one that is neither paused nor limited has its name only.
func (o *Operator) QueueRule(ctx context.Context, queue string) (Queue, error) {
	found, err := o.queueRules(ctx, &queue)
	if err != nil || len(found) == 0 {
		return Queue{Name: queue}, err
	}
	return found[0], nil
}

func (o *Operator) queueRules(ctx context.Context, queue *string) ([]Queue, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListQueueRules(ctx, queue, MaxQueues)
	if err != nil {
		return nil, fmt.Errorf("list the rules of queues: %w", err)
	}
	queues := make([]Queue, len(rows))
	for i, row := range rows {
		queues[i] = Queue{Name: row.Queue, PausedSince: row.PausedAt.Time, MaxRunning: int(pgvalue.OrZero(row.MaxRunning))}
		if row.Rate != nil {
			queues[i].Rate = Rate{Starts: int(*row.Rate), Interval: seconds(row.RateSeconds)}
		}
	}
	return queues, nil
}

// Pause stops claims of a queue, in all processes, from the next one on; jobs that
// are running or claimed go on. The queue need not exist yet, if it has a name that
// outbox.Options.Queue accepts; others, which only SQL by hand can give to jobs, need open
// jobs. Anything else is an [*outbox.InvalidError]. Pausing a paused queue changes
// nothing.
func (o *Operator) Pause(ctx context.Context, queue string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.checkQueue(ctx, queue); err != nil {
		return err
	}
	if err := o.db.PauseQueue(ctx, sqlgen.PauseQueueParams{Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason}); err != nil {
		return fmt.Errorf("pause queue %s: %w", queue, err)
	}
	return nil
}

// Resume lets claims of a queue go on and wakes the dispatchers. Resuming a queue
// that is not paused changes nothing. Names are as for [Operator.Pause].
func (o *Operator) Resume(ctx context.Context, queue string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.checkQueue(ctx, queue); err != nil {
		return err
	}
	if err := o.db.ResumeQueue(ctx, sqlgen.ResumeQueueParams{Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason}); err != nil {
		return fmt.Errorf("resume queue %s: %w", queue, err)
	}
	return nil
}

// checkQueue accepts the names that queues can have, and any other in which the database
// holds open jobs or which has rules already: a producer that inserts into outbox.jobs
// past outbox.enqueue can use any name, and it has to be possible to stop that queue.
func (o *Operator) checkQueue(ctx context.Context, queue string) error {
	fault := engine.NameFault(queue)
	switch {
	case fault == "":
		return nil
	case queue == "" || len(queue) > engine.MaxNameBytes:
		return &outbox.InvalidError{Field: "queue", Reason: fault}
	}
	if err := validTexts(map[string]string{"queue": queue}); err != nil {
		return err
	}
	known, err := o.db.QueueIsKnown(ctx, queue)
	if err != nil {
		return fmt.Errorf("look for queue %q: %w", queue, err)
	}
	if !known {
		return &outbox.InvalidError{Field: "queue", Reason: fault + ", or the name of a queue with open jobs"}
	}
	return nil
}
