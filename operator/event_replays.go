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
	// ErrReplayNotFound reports that a sink has no such replay, or that it belongs to another tenant.
	ErrReplayNotFound = errors.New("replay not found")
	// ErrNothingToReplay reports that no event matches.
	ErrNothingToReplay = errors.New("no event in the log matches")
)

// EventFilter selects events of the log: those that meet all conditions. A zero field is no condition.
type EventFilter struct {
	Since, Until time.Time // when they were stored, Until excluded; zero means now
	Topics       []string  // each a topic, or a pattern that ends in .*, or *, as in routes
	Key          string
	Tenant       outbox.ID
}

// EventReplay selects what a sink is to publish again.
type EventReplay struct {
	EventFilter
	PerSecond float64 // rate limit; 0 means no limit
	Again     bool    // under new ids, ID/REPLAY, which no broker and no consumer takes for repeats
	// StopLive makes the sink publish nothing new while the replay runs: from when it has published everything up to
	// the last matching event, until the replay has ended. So no other message of a key comes between those of the
	// replay.
	StopLive bool
}

// ReplayPlan is what a replay would publish.
type ReplayPlan struct {
	Events         int64
	Oldest, Newest time.Time     // when the first and the last of them were stored
	Until          time.Time     // the filter's, or now
	Takes          time.Duration // a hundred years if it is longer
	// Dropped estimates how many messages the broker would drop if it got them at once, because it remembers their ids
	// for the time Remembers: the events that were stored within that time. It is 0 with new ids, or if that is not
	// known.
	Dropped   int64
	Remembers time.Duration

	first, last int64
}

// Replay is a replay of events by a sink.
type Replay struct {
	ID   outbox.ID // in the header posthaste-replay of its messages
	Sink string
	EventReplay
	Events    int64  // that matched at the beginning
	Published int64  // so far; after a crash some count twice
	Refused   int64  // skipped
	Repeated  int64  // of those published: dropped by the broker as repeats, as far as it reports that
	Position  int64  // in the log: all events up to here are done
	Failure   string // why it does not go on; "" if it does
	Actor     string
	Reason    string
	StartedAt time.Time
	EndedAt   time.Time // zero while it runs
	Stopped   bool      // by an operator
}

// State returns running, finished or stopped.
func (r Replay) State() string {
	switch {
	case r.Stopped:
		return "stopped"
	case r.EndedAt.IsZero():
		return "running"
	}
	return "finished"
}

// ForTenant returns the replay for a reader who is bound to one tenant: its Failure only states that there is one. The
// text contains addresses of the broker, which are for operators of all tenants.
func (r Replay) ForTenant() Replay {
	if r.Failure != "" {
		r.Failure = "the sink does not take more now; operators of all tenants see why"
	}
	return r
}

func (r *EventReplay) validate() error {
	errs := []error{validTexts(map[string]string{
		"EventReplay.Key": r.Key, "EventReplay.Topics": strings.Join(r.Topics, " "),
	})}
	for _, pattern := range r.Topics {
		if name := strings.TrimSuffix(pattern, ".*"); pattern != "*" &&
			(name == "" || strings.ContainsAny(name, "* \t")) {
			errs = append(errs, invalid.Field("EventReplay.Topics",
				"has %q: want a topic, one that ends in .* or *", pattern))
		}
	}
	if !r.Until.IsZero() && !r.Since.Before(r.Until) {
		errs = append(errs, invalid.Field("EventReplay.Until", "is not after since"))
	}
	return errors.Join(append(errs, validPerSecond("EventReplay.PerSecond", r.PerSecond))...)
}

// WouldReplayEvents returns what [Operator.ReplayEvents] would do, and changes nothing. It returns
// [*outbox.InvalidError]s, and [ErrSinkNotFound], except in a context that is tied to one tenant, which may not learn
// which sinks exist.
func (o *Operator) WouldReplayEvents(ctx context.Context, sink string, r EventReplay) (ReplayPlan, error) {
	if err := errors.Join(validSink(sink), r.validate()); err != nil {
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
	if tenantIn(ctx).IsZero() {
		if _, err := o.Sink(ctx, sink); err != nil {
			return ReplayPlan{}, fmt.Errorf("replay to %w", err)
		}
	}
	row, err := o.db.CountReplay(ctx, sqlgen.CountReplayParams{
		Sink: sink, Since: from(r.Since), Until: until(r.Until), TenantID: pgvalue.UUIDOrNull(r.Tenant), Key: r.Key,
		Topics: patterns(r.Topics),
	})
	if err != nil {
		return ReplayPlan{}, fmt.Errorf("count the events of a replay: %w", err)
	}
	plan := ReplayPlan{
		Events: row.Events, Oldest: row.Oldest.Time, Newest: row.Newest.Time, Until: r.Until,
		Remembers: time.Duration(row.Remembers.Microseconds) * time.Microsecond, first: row.FirstPosition,
		last: row.LastPosition,
	}
	if !r.Again {
		plan.Dropped = row.Remembered
	}
	if r.PerSecond > 0 {
		plan.Takes = timeOf(row.Events, r.PerSecond)
	}
	return plan, nil
}

// ReplayEvents makes a sink publish events again, alongside new ones unless r.StopLive is set. The process that
// publishes to the sink does it: it begins within seconds, if there is one, and continues after a crash. An event that
// the sink has not published yet is published twice. Replays of a sink take turns, at most 16 per tenant at a time. It
// returns [ErrSinkNotFound], [ErrNothingToReplay], and [*outbox.InvalidError]s.
func (o *Operator) ReplayEvents(ctx context.Context, sink string, r EventReplay) (Replay, error) {
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
		ID: pgvalue.UUID(id), Sink: sink, TenantID: pgvalue.UUIDOrNull(r.Tenant), Topics: patterns(r.Topics),
		Key:   r.Key,
		Since: from(r.Since), Until: until(plan.Until), Position: plan.first - 1, LastPosition: plan.last,
		PerSecond: r.PerSecond,
		Again:     r.Again, StopLive: r.StopLive, Events: plan.Events, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	})
	if pgsession.State(err) == pgsession.ForeignKeyViolation { // removed since, or guessed by a tenant
		return Replay{}, fmt.Errorf("replay to sink %s: %w", sink, ErrSinkNotFound)
	}
	if err != nil {
		return Replay{}, fmt.Errorf("replay to sink %s: %w", sink, err)
	}
	r.Until = plan.Until
	return Replay{
		ID: id, Sink: sink, EventReplay: r, Events: plan.Events, Position: plan.first - 1, Actor: o.by.actor,
		Reason: o.by.reason, StartedAt: at.Time,
	}, nil
}

// patterns returns the topics as patterns, never NULL.
func patterns(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// Replays returns the replays of a sink, newest first, at most 1 000; those of a tenant unless it is zero. Replays that
// ended more than 90 days ago are deleted. It returns [ErrSinkNotFound].
func (o *Operator) Replays(ctx context.Context, sink string, tenant outbox.ID) ([]Replay, error) {
	replays, err := o.replays(ctx, sqlgen.ListReplaysParams{Sink: sink, TenantID: pgvalue.UUIDOrNull(tenant)})
	if err == nil && len(replays) == 0 {
		_, err = o.Sink(ctx, sink)
	}
	return replays, err
}

// Replay returns one replay, or [ErrReplayNotFound]; only one of the tenant, unless that is zero.
func (o *Operator) Replay(ctx context.Context, sink string, tenant, id outbox.ID) (Replay, error) {
	found, err := o.replays(ctx, sqlgen.ListReplaysParams{
		Sink: sink, TenantID: pgvalue.UUIDOrNull(tenant),
		ID: pgvalue.UUID(id),
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("replay %s of sink %s: %w", id, sink, ErrReplayNotFound)
	}
	if err != nil {
		return Replay{}, err
	}
	return found[0], nil
}

func (o *Operator) replays(ctx context.Context, params sqlgen.ListReplaysParams) ([]Replay, error) {
	if err := validSink(params.Sink); err != nil {
		return nil, err
	}
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
			EventReplay: EventReplay{
				EventFilter: EventFilter{
					Since: row.Since.Time, Until: row.Until.Time, Topics: row.Topics, Key: row.Key,
					Tenant: row.TenantID.Bytes,
				},
				PerSecond: row.PerSecond, Again: row.Again, StopLive: row.StopLive,
			},
			Events: row.Events, Published: row.Published, Refused: row.Refused, Repeated: row.Repeated,
			Position: row.Position,
			Actor:    row.Actor, Reason: row.Reason, StartedAt: row.CreatedAt.Time, EndedAt: row.FinishedAt.Time,
			Stopped: row.Stopped,
		}
		if row.Failure != nil {
			all[i].Failure = *row.Failure
		}
	}
	return all, nil
}

// StopReplay ends a replay. A page in progress may still be published. Stopping a replay that has ended changes
// nothing. It returns [ErrReplayNotFound], also for a replay of a tenant other than the given one, if any.
func (o *Operator) StopReplay(ctx context.Context, sink string, tenant, id outbox.ID) error {
	if err := validSink(sink); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.StopReplay(ctx, sqlgen.StopReplayParams{
		Sink: sink, ID: pgvalue.UUID(id), TenantID: pgvalue.UUIDOrNull(tenant), Actor: o.by.actor,
		RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("stop replay %s: %w", id, err)
	case len(found) == 0:
		return fmt.Errorf("stop replay %s of sink %s: %w", id, sink, ErrReplayNotFound)
	}
	return nil
}
