package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	// ErrReplayNotFound says that a sink has no such replay, or that it is another tenant's.
	ErrReplayNotFound = errors.New("replay not found")
	// ErrNothingToReplay says that no event is meant.
	ErrNothingToReplay = errors.New("no event of the log is meant")
)

// EventFilter says which events of the log are meant: those that meet all conditions. What is
// zero is none.
type EventFilter struct {
	Since, Until time.Time // when they were stored, Until not included; zero is now
	Topics       []string  // each a topic, or one that ends in .*, or * as in routes
	Key          string
	Tenant       outbox.ID
}

// ReplayEvents is what a sink is to publish again.
type ReplayEvents struct {
	EventFilter
	PerSecond float64 // no more than so many; 0 is without a limit
	Again     bool    // under new ids, ID/REPLAY, which no broker and no consumer takes for repeats
	// StopLive has the sink publish nothing new while the replay runs: once it has published everything up to the last
	// event that is meant, and until the replay has ended. So no message of a key is between those of the replay.
	StopLive bool
}

// ReplayPlan is what a replay would publish.
type ReplayPlan struct {
	Events         int64
	Oldest, Newest time.Time // when the first and the last of them were stored
	Until          time.Time // the filter's, or now
	Takes          time.Duration
	// Dropped is about how many the broker would drop if it got them at once, because it remembers
	// their ids for the time Remembers: events that were stored within it. 0 with new ids, and if
	// it is not known.
	Dropped   int64
	Remembers time.Duration

	first, last int64
}

// Replay is events that a sink publishes again.
type Replay struct {
	ID   outbox.ID // messages have it in the header posthaste-replay
	Sink string
	ReplayEvents
	Events    int64  // that were meant at the beginning
	Published int64  // so far; after a crash some count twice
	Refused   int64  // passed by
	Repeated  int64  // of those published: dropped by the broker as repeats, as far as it says so
	Position  int64  // in the log: everything up to here is done
	Failure   string // why it does not go on; "" if it does
	Actor     string
	Reason    string
	StartedAt time.Time
	EndedAt   time.Time // zero while it runs
	Stopped   bool      // by an operator
}

// State is running, finished or stopped.
func (r Replay) State() string {
	switch {
	case r.Stopped:
		return "stopped"
	case r.EndedAt.IsZero():
		return "running"
	}
	return "finished"
}

// ForTenant is the replay for a reader who is bound to one tenant: of Failure it has that there is one. The text names
// addresses of the broker, which are for operators of all tenants.
func (r Replay) ForTenant() Replay {
	if r.Failure != "" {
		r.Failure = "the sink does not take more now; operators of all tenants see why"
	}
	return r
}

func (r *ReplayEvents) validate() error {
	var errs []error
	for _, pattern := range r.Topics {
		if name := strings.TrimSuffix(pattern, ".*"); pattern != "*" && (name == "" || strings.ContainsAny(name, "* \t")) {
			errs = append(errs, invalid.Field("topics", "has %q: want a topic, one that ends in .* or *", pattern))
		}
	}
	if !r.Until.IsZero() && !r.Since.Before(r.Until) {
		errs = append(errs, invalid.Field("until", "is not after since"))
	}
	if r.PerSecond != 0 && !(r.PerSecond >= MinRate && r.PerSecond <= MaxRate) { // also not a number
		errs = append(errs, invalid.Field("rate", "is %v events a second, want %v to %v, or 0 for no limit", r.PerSecond, MinRate, MaxRate))
	}
	return errors.Join(errs...)
}

// WouldReplayEvents returns what [Operator.ReplayEvents] would do, and changes nothing. It returns [ErrSinkNotFound],
// but not in a context that is tied to one tenant: which sinks there are is not for it to know. It returns
// [*outbox.InvalidError]s.
func (o *Operator) WouldReplayEvents(ctx context.Context, sink string, r ReplayEvents) (ReplayPlan, error) {
	if err := r.validate(); err != nil {
		return ReplayPlan{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	if r.Until.IsZero() {
		now, err := o.db.ReadClock(ctx)
		if err != nil {
			return ReplayPlan{}, fmt.Errorf("read the database's clock: %w", err)
		}
		r.Until = now.Time
	}
	if tiedTo(ctx).IsZero() {
		if _, err := o.Sink(ctx, sink); err != nil {
			return ReplayPlan{}, fmt.Errorf("replay to %w", err)
		}
	}
	row, err := o.db.CountReplay(ctx, sqlgen.CountReplayParams{
		Sink: sink, Since: from(r.Since), Until: until(r.Until), TenantID: pgvalue.UUIDOrNull(r.Tenant), Key: r.Key, Topics: patterns(r.Topics),
	})
	if err != nil {
		return ReplayPlan{}, fmt.Errorf("count the events of a replay: %w", err)
	}
	plan := ReplayPlan{
		Events: row.Events, Oldest: row.Oldest.Time, Newest: row.Newest.Time, Until: r.Until,
		Remembers: time.Duration(row.Remembers.Microseconds) * time.Microsecond, first: row.FirstPosition, last: row.LastPosition,
	}
	if !r.Again {
		plan.Dropped = row.Remembered
	}
	if r.PerSecond > 0 {
		plan.Takes = time.Duration(float64(row.Events) / r.PerSecond * float64(time.Second))
	}
	return plan, nil
}

// ReplayEvents has a sink publish events again, beside what is new unless r says otherwise. The process that publishes
// to the sink does it: it begins within seconds, if there is one, and goes on after a crash. An
// event that the sink has not published yet is published twice. Replays of a sink take turns,
// 16 of each tenant at a time. It returns [ErrSinkNotFound], [ErrNothingToReplay], and
// [*outbox.InvalidError]s.
func (o *Operator) ReplayEvents(ctx context.Context, sink string, r ReplayEvents) (Replay, error) {
	plan, err := o.WouldReplayEvents(ctx, sink, r)
	if err != nil {
		return Replay{}, err
	}
	if plan.Events == 0 {
		return Replay{}, fmt.Errorf("replay to sink %s: %w", sink, ErrNothingToReplay)
	}
	id := outbox.NewID()
	bound, cancel := bounded(ctx)
	defer cancel()
	at, err := o.db.StartReplay(bound, sqlgen.StartReplayParams{
		ID: pgvalue.UUID(id), Sink: sink, TenantID: pgvalue.UUIDOrNull(r.Tenant), Topics: patterns(r.Topics), Key: r.Key,
		Since: from(r.Since), Until: until(plan.Until), Position: plan.first - 1, LastPosition: plan.last, PerSecond: r.PerSecond,
		Again: r.Again, StopLive: r.StopLive, Events: plan.Events, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	if pgsession.State(err) == pgsession.ForeignKeyViolation { // removed since, or a tenant's guess
		return Replay{}, fmt.Errorf("replay to sink %s: %w", sink, ErrSinkNotFound)
	}
	if err != nil {
		return Replay{}, fmt.Errorf("replay to sink %s: %w", sink, err)
	}
	r.Until = plan.Until
	return Replay{
		ID: id, Sink: sink, ReplayEvents: r, Events: plan.Events, Position: plan.first - 1, Actor: o.by.actor, Reason: o.by.reason, StartedAt: at.Time,
	}, nil
}

// patterns are never NULL.
func patterns(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// Replays returns the replays of a sink, newest first, at most 1 000; those of a tenant unless it
// is zero. Ones that ended more than 90 days ago are forgotten. It returns [ErrSinkNotFound].
func (o *Operator) Replays(ctx context.Context, sink string, tenant outbox.ID) ([]Replay, error) {
	replays, err := o.replays(ctx, sqlgen.ListReplaysParams{Sink: sink, TenantID: pgvalue.UUIDOrNull(tenant)})
	if err == nil && len(replays) == 0 {
		_, err = o.Sink(ctx, sink)
	}
	return replays, err
}

// Replay returns one replay, or [ErrReplayNotFound]; one of a tenant unless it is zero.
func (o *Operator) Replay(ctx context.Context, sink string, id, tenant outbox.ID) (Replay, error) {
	found, err := o.replays(ctx, sqlgen.ListReplaysParams{Sink: sink, TenantID: pgvalue.UUIDOrNull(tenant), ID: pgvalue.UUID(id)})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("replay %s of sink %s: %w", id, sink, ErrReplayNotFound)
	}
	if err != nil {
		return Replay{}, err
	}
	return found[0], nil
}

func (o *Operator) replays(ctx context.Context, params sqlgen.ListReplaysParams) ([]Replay, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListReplays(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	all := make([]Replay, len(rows))
	for i, row := range rows {
		all[i] = Replay{
			ID: row.ID.Bytes, Sink: row.Sink,
			ReplayEvents: ReplayEvents{
				EventFilter: EventFilter{Since: row.Since.Time, Until: row.Until.Time, Topics: row.Topics, Key: row.Key, Tenant: row.TenantID.Bytes},
				PerSecond:   row.PerSecond, Again: row.Again, StopLive: row.StopLive,
			},
			Events: row.Events, Published: row.Published, Refused: row.Refused, Repeated: row.Repeated, Position: row.Position,
			Actor: row.Actor, Reason: row.Reason, StartedAt: row.CreatedAt.Time, EndedAt: row.FinishedAt.Time, Stopped: row.Stopped,
		}
		if row.Failure != nil {
			all[i].Failure = *row.Failure
		}
	}
	return all, nil
}

// StopReplay ends a replay. A page of it that is under way may still be published. To stop one
// that has ended changes nothing. It returns [ErrReplayNotFound], also for one of another tenant
// than the one that is named, if one is.
func (o *Operator) StopReplay(ctx context.Context, sink string, id, tenant outbox.ID) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.StopReplay(ctx, sqlgen.StopReplayParams{
		Sink: sink, ID: pgvalue.UUID(id), TenantID: pgvalue.UUIDOrNull(tenant), Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("stop replay %s: %w", id, err)
	case len(found) == 0:
		return fmt.Errorf("stop replay %s of sink %s: %w", id, sink, ErrReplayNotFound)
	}
	return nil
}
