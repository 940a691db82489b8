package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

const (
	maxHistoryJobs  = 20_000
	maxHistoryBytes = 64 << 20
)

var (
	// ErrNoJobsToReplay reports that no job of the history matches.
	ErrNoJobsToReplay = errors.New("no job in the history matches")
	// ErrTooManyToReplay reports that a replay of jobs would store more than 20 000 of them, or 64 MiB.
	ErrTooManyToReplay = errors.New("more than 20 000 jobs or 64 MiB: name a shorter time")
)

// JobReplay selects jobs of the history to enqueue again: those that have succeeded, except copies made by another
// such replay.
type JobReplay struct {
	Kind         string
	Since, Until time.Time // when they succeeded, Until excluded; zero means now
	Key          string    // "" means any
	Tenant       outbox.ID // zero means any
	PerSecond    float64   // how many become due per second; 0 means all at once
	// Again gives a new id to the message of a job that a sink publishes (relay/jobs). Without it, the message keeps
	// the id of the job's first time, by which brokers and consumers drop repeats.
	Again bool
}

// HistoryPlan is what a replay of jobs would store.
type HistoryPlan struct {
	Jobs, Bytes    int64
	Oldest, Newest time.Time     // when the first and the last of them succeeded
	Until          time.Time     // the replay's Until, or now
	Takes          time.Duration // a hundred years if it is longer
}

func (r *JobReplay) validate() error {
	errs := []error{validTexts(map[string]string{"JobReplay.Key": r.Key})}
	if fault := engine.NameFault(r.Kind); fault != "" {
		errs = append(errs, invalid.Field("JobReplay.Kind", "%s", fault))
	}
	if strings.HasPrefix(r.Kind, engine.HeldKind("")) {
		errs = append(errs, invalid.Field("JobReplay.Kind",
			"is that of messages that a sink has refused: replay their events"))
	}
	if !r.Until.IsZero() && !r.Since.Before(r.Until) {
		errs = append(errs, invalid.Field("JobReplay.Until", "is not after since"))
	}
	return errors.Join(append(errs, validPerSecond("JobReplay.PerSecond", r.PerSecond))...)
}

// WouldReplayHistory returns what [Operator.ReplayHistory] would do, and changes nothing. It also returns a plan that
// is too large.
func (o *Operator) WouldReplayHistory(ctx context.Context, r JobReplay) (HistoryPlan, error) {
	if err := r.validate(); err != nil {
		return HistoryPlan{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	if r.Until.IsZero() {
		now, err := o.db.ReadClock(ctx)
		if err != nil {
			return HistoryPlan{}, fmt.Errorf("read the database's clock: %w", err)
		}
		r.Until = now.Time
	}
	row, err := o.db.CountHistory(ctx, sqlgen.CountHistoryParams{
		Since: from(r.Since), Until: until(r.Until), Kind: r.Kind, TenantID: pgvalue.UUIDOrNull(r.Tenant), Key: r.Key,
		SealedPrefix: protect.SealedPrefix,
	})
	switch {
	case err != nil:
		return HistoryPlan{}, fmt.Errorf("count the jobs of a replay: %w", err)
	case row.Sealed > 0:
		return HistoryPlan{},
			invalid.Field("JobReplay.Kind",
				"has %d jobs in that time of which the payload is sealed, for the job itself: no handler could open a copy", row.Sealed)
	}
	plan := HistoryPlan{
		Jobs: row.Jobs, Bytes: row.Bytes, Oldest: row.Oldest.Time, Newest: row.Newest.Time,
		Until: r.Until,
	}
	if r.PerSecond > 0 {
		plan.Takes = timeOf(plan.Jobs, r.PerSecond)
	}
	return plan, nil
}

// ReplayHistory enqueues jobs of the history again, all of them in one transaction and in the order in which they
// succeeded, with their kind, queue, payload, headers and key, and as many attempts. Their header posthaste-replay is
// the returned id; posthaste-original-id, unless Again is set, is that of the original job. Jobs with a key are ordered
// among themselves and behind the key's existing jobs; one that becomes a dead letter blocks no others. Deadlines,
// results and idempotency keys are not repeated. If the payload of any of them is sealed, nothing is enqueued, because
// no handler could open the copy. ReplayHistory returns [ErrNoJobsToReplay], [ErrTooManyToReplay] and
// [*outbox.InvalidError]s.
func (o *Operator) ReplayHistory(ctx context.Context, r JobReplay) (outbox.ID, HistoryPlan, error) {
	fail := func(err error) (outbox.ID, HistoryPlan, error) {
		return outbox.ID{}, HistoryPlan{}, fmt.Errorf("replay jobs of kind %s: %w", r.Kind, err)
	}
	plan, err := o.WouldReplayHistory(ctx, r)
	switch {
	case err != nil:
		return outbox.ID{}, HistoryPlan{}, err
	case plan.Jobs == 0:
		return fail(ErrNoJobsToReplay)
	case plan.Jobs > maxHistoryJobs || plan.Bytes > maxHistoryBytes:
		return fail(ErrTooManyToReplay)
	}
	params := sqlgen.ReplayHistoryParams{
		ID: outbox.NewID().String(), Kind: r.Kind, Since: from(r.Since), Until: until(plan.Until),
		TenantID: pgvalue.UUIDOrNull(r.Tenant), Key: r.Key,
		Again: r.Again, MaxRows: maxHistoryJobs, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	}
	var spacing time.Duration
	if r.PerSecond > 0 {
		spacing = time.Duration(float64(time.Second) / r.PerSecond)
	}
	params.Spacing = pgvalue.Interval(spacing)
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	row, err := o.db.ReplayHistory(ctx, params)
	switch {
	case err != nil:
		return fail(err)
	case !row.Fit:
		return fail(ErrTooManyToReplay)
	case row.Jobs == 0: // the reaper was faster
		return fail(ErrNoJobsToReplay)
	}
	plan.Jobs = row.Jobs
	id, err := outbox.ParseID(params.ID)
	return id, plan, err
}
