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

// Queue describes a queue: its open jobs, its limits, and whether it is paused.
type Queue struct {
	Name        string
	PausedSince time.Time               // zero unless it is paused
	MaxRunning  int                     // see [Limits]; 0 means no limit
	Rate        Rate                    // see [Limits]; zero means no limit
	Jobs        map[outbox.Status]int64 // open jobs; statuses without any are omitted
	OldestDue   time.Time               // when the job that has waited longest was due; zero if none is due
	// Unavailable maps the kinds whose dependency was unavailable when a process last tried to the time since then.
	// Only [Operator.Queues] and [Operator.QueuesOf] fill it.
	Unavailable map[string]time.Time
}

// MaxQueues is the most queues that are listed.
const MaxQueues = 1000

// Queues returns the queues that have open jobs, or are paused or limited, by name, the first 1000 of them. It counts
// every open job: with a million that takes about half a second.
func (o *Operator) Queues(ctx context.Context) ([]Queue, error) {
	return o.QueuesOf(ctx, outbox.ID{})
}

// QueuesOf returns queues as Queues does, with the open jobs of a single tenant; zero means all. A queue is paused,
// limited or unavailable for all tenants.
func (o *Operator) QueuesOf(ctx context.Context, tenant outbox.ID) ([]Queue, error) {
	jobs, _, err := o.CountOpen(ctx, tenant)
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

// addUnavailable adds the kinds that wait for their dependency. The jobs that have found it unavailable record that;
// the others, which their processes leave unclaimed meanwhile, look like any waiting job.
func (o *Operator) addUnavailable(ctx context.Context, queues []Queue) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListUnavailableKinds(ctx, MaxQueues)
	if err != nil {
		return fmt.Errorf("list unavailable kinds: %w", err)
	}
	for _, row := range rows {
		i, found := slices.BinarySearchFunc(queues, row.Queue, func(q Queue, name string) int {
			return strings.Compare(q.Name, name)
		})
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

// OpenJobs holds the open jobs by queue.
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

// In returns the queues that have jobs or rules (see [Operator.QueueRules]), by name, the first 1000 of them. The maps
// of jobs are shared, not copied.
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

// Of returns q with its jobs; see [OpenJobs.In].
func (j OpenJobs) Of(q Queue) Queue {
	of := j[q.Name]
	if q.Jobs, q.OldestDue = of.Jobs, of.OldestDue; q.Jobs == nil {
		q.Jobs = map[outbox.Status]int64{}
	}
	return q
}

// CountOpen counts the open jobs of a tenant or, if it is zero, of all. In the latter case it also counts them by
// tenant: byTenant contains every tenant that has any, but is nil if there are too many tenants and queues to hold.
// With a million jobs it takes about half a second.
func (o *Operator) CountOpen(ctx context.Context,
	tenant outbox.ID,
) (jobs OpenJobs, byTenant map[outbox.ID]OpenJobs, err error) {
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

// maxTenantRows limits the counts by tenant that CountOpen holds, some 10 MB.
const maxTenantRows = 50_000

// QueueRules returns the queues that are paused or limited, without their jobs, by name, the first 1000 of them.
func (o *Operator) QueueRules(ctx context.Context) ([]Queue, error) { return o.queueRules(ctx, nil) }

// QueueRule returns a queue without its jobs. If the queue is neither paused nor limited, only its name is set.
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
		queues[i] = Queue{
			Name: row.Queue, PausedSince: row.PausedAt.Time,
			MaxRunning: int(pgvalue.OrZero(row.MaxRunning)),
		}
		if row.Rate != nil {
			queues[i].Rate = Rate{Starts: int(*row.Rate), Interval: pgvalue.Seconds(row.RateSeconds)}
		}
	}
	return queues, nil
}

// Pause stops claims of a queue in all processes, from the next one on; jobs that are running or claimed go on. The
// queue need not exist yet if outbox.Options.Queue accepts its name; other names, which only SQL by hand can give to
// jobs, need open jobs. Anything else gets an [*outbox.InvalidError]. Pausing a paused queue changes nothing.
func (o *Operator) Pause(ctx context.Context, queue string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.checkQueue(ctx, queue); err != nil {
		return err
	}
	if err := o.db.PauseQueue(ctx, sqlgen.PauseQueueParams{
		Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	}); err != nil {
		return fmt.Errorf("pause queue %s: %w", queue, err)
	}
	return nil
}

// Resume lets claims of a queue continue and wakes the dispatchers. Resuming a queue that is not paused changes
// nothing. Names are as for [Operator.Pause].
func (o *Operator) Resume(ctx context.Context, queue string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.checkQueue(ctx, queue); err != nil {
		return err
	}
	if err := o.db.ResumeQueue(ctx, sqlgen.ResumeQueueParams{
		Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	}); err != nil {
		return fmt.Errorf("resume queue %s: %w", queue, err)
	}
	return nil
}

// checkQueue accepts the names that queues can have, and any other that open jobs bear or that already has rules: a
// producer that inserts into outbox.jobs without outbox.enqueue can use any name, and it must be possible to stop that
// queue.
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

// LongestRunning lists up to limit jobs of a queue (0 means 50; at most 200) that run now, the one first whose attempt
// began first, without payloads, results and attempts. The zero tenant means any. It omits jobs whose leases lapsed
// more than ten minutes ago, which the reaper should have taken away, unless they count towards the queue's limit;
// [Operator.Explain] reports that such a lease lapsed.
func (o *Operator) LongestRunning(ctx context.Context, queue string, tenant outbox.ID, limit int) ([]Job, error) {
	most, err := pageLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	if err := validTexts(map[string]string{"queue": queue}); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListLongestRunning(ctx, sqlgen.ListLongestRunningParams{
		Queue: queue, Tenant: pgvalue.UUIDOrNull(tenant), MaxRows: most,
	})
	if err != nil {
		return nil, fmt.Errorf("list what has run longest in queue %s: %w", queue, err)
	}
	jobs := make([]Job, len(rows))
	for i, row := range rows {
		jobs[i] = fromRow(sqlgen.ListJobsRow(row))
	}
	return jobs, nil
}
