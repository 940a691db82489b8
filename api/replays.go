package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// NewReplay selects events that a sink is to publish again.
type NewReplay struct {
	Since         time.Time `json:"since" empty:"say from when on" doc:"Events stored at or after this time"`
	Until         time.Time `json:"until,omitzero" empty:"leave it out to mean now" doc:"Events stored before this time; now if omitted"`
	Topics        []string  `json:"topics,omitempty" empty:"leave it out to mean any" maxItems:"100" nullable:"false" doc:"Topics, prefixes that end in .*, or *; all topics if omitted"`
	Key           string    `json:"key,omitempty" empty:"leave it out to mean any" maxLength:"512"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"At most this many per second; unlimited if omitted"`
	Again         bool      `json:"again,omitempty" doc:"Use new ids, ID/REPLAY, which are not dropped as repeats"`
	StopLive      bool      `json:"stopLive,omitempty" doc:"Publish no new events while it runs; for tokens of all tenants"`
	DryRun        bool      `json:"dryRun,omitempty" doc:"Only count what it would publish"`
	Reason        string    `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

// ReplayAnswer is a replay that was started, or what one would publish.
type ReplayAnswer struct {
	Events          int64     `json:"events" doc:"Number of matching events"`
	OldestAt        time.Time `json:"oldestAt,omitzero" doc:"When the first of them was stored"`
	NewestAt        time.Time `json:"newestAt,omitzero" doc:"When the last of them did"`
	Until           time.Time `json:"until"`
	TakesSeconds    float64   `json:"takesSeconds,omitempty" doc:"Duration at the rate"`
	Dropped         int64     `json:"dropped,omitempty" doc:"Estimate of the messages that the broker would drop, because it remembers their ids; for tokens of all tenants"`
	RememberSeconds float64   `json:"rememberSeconds,omitempty" doc:"How long the broker remembers ids; for tokens of all tenants"`
	Replay          *Replay   `json:"replay,omitempty" doc:"The replay; omitted after a dry run"`
}

// Replay is a replay of events by a sink.
type Replay struct {
	ID            string    `json:"id" format:"uuid" doc:"Id of the replay, which messages have in the header posthaste-replay"`
	Sink          string    `json:"sink"`
	State         string    `json:"state" enum:"running,finished,stopped"`
	Tenant        string    `json:"tenant,omitempty" format:"uuid" doc:"Tenant of the events; omitted: all tenants"`
	Since         time.Time `json:"since"`
	Until         time.Time `json:"until"`
	Topics        []string  `json:"topics,omitempty" nullable:"false"`
	Key           string    `json:"key,omitempty"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty"`
	Again         bool      `json:"again,omitempty"`
	StopLive      bool      `json:"stopLive,omitempty" doc:"Whether no new events are published while it runs"`
	Events        int64     `json:"events" doc:"Number of matching events at the start"`
	Published     int64     `json:"published" doc:"Messages published so far; after a crash some may be counted twice"`
	Refused       int64     `json:"refused" doc:"Messages that the sink has refused, and that were skipped"`
	Repeated      int64     `json:"repeated" doc:"Published messages that the broker has dropped as repeats, if it reports that"`
	WaitsFor      string    `json:"waitsFor,omitempty" doc:"Why it does not continue"`
	Actor         string    `json:"actor"`
	Reason        string    `json:"reason,omitempty"`
	StartedAt     time.Time `json:"startedAt"`
	EndedAt       time.Time `json:"endedAt,omitzero"`
}

func replayOf(ctx context.Context, r operator.Replay) Replay {
	if !within(ctx).IsZero() {
		r = r.ForTenant()
	}
	shown := Replay{
		ID: r.ID.String(), Sink: r.Sink, State: r.State(), Since: utc(r.Since), Until: utc(r.Until), Topics: r.Topics,
		Key:           r.Key,
		RatePerSecond: r.PerSecond, Again: r.Again, StopLive: r.StopLive, Events: r.Events, Published: r.Published,
		Refused:  r.Refused,
		Repeated: r.Repeated, WaitsFor: r.Failure, Actor: r.Actor, Reason: r.Reason, StartedAt: utc(r.StartedAt),
		EndedAt: utc(r.EndedAt),
	}
	if !r.Tenant.IsZero() {
		shown.Tenant = r.Tenant.String()
	}
	return shown
}

type startReplayInput struct {
	OfSink
	OfTenant
	Body NewReplay
}

type startedReplayOutput struct {
	Status int
	Body   ReplayAnswer
}

// startReplay replays a tenant's own events, or with a token of all tenants, those of all.
func (s *server) startReplay(ctx context.Context, in *startReplayInput) (*startedReplayOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	if in.Body.StopLive && !within(ctx).IsZero() {
		return nil, forbidden.because("To stop what is new concerns all tenants: it takes a token of all tenants.")
	}
	wanted := operator.EventReplay{
		EventFilter: operator.EventFilter{
			Since: in.Body.Since, Until: in.Body.Until, Topics: in.Body.Topics,
			Key: in.Body.Key, Tenant: tenant,
		},
		PerSecond: in.Body.RatePerSecond, Again: in.Body.Again, StopLive: in.Body.StopLive,
	}
	plan, err := s.operator.WouldReplayEvents(ctx, in.Sink, wanted)
	if err != nil {
		return nil, err
	}
	out := &startedReplayOutput{Status: http.StatusOK, Body: ReplayAnswer{
		Events: plan.Events, OldestAt: utc(plan.Oldest), NewestAt: utc(plan.Newest), Until: utc(plan.Until),
		TakesSeconds: plan.Takes.Seconds(),
		Dropped:      plan.Dropped, RememberSeconds: plan.Remembers.Seconds(),
	}}
	if !within(ctx).IsZero() {
		out.Body.Dropped, out.Body.RememberSeconds = 0, 0 // only tokens of all tenants may learn which sinks exist
	}
	if in.Body.DryRun {
		return out, nil
	}
	wanted.Until = plan.Until
	started, err := s.by(ctx).Because(in.Body.Reason).ReplayEvents(ctx, in.Sink, wanted)
	// Only tokens of all tenants may learn which sinks exist.
	if errors.Is(err, operator.ErrSinkNotFound) && !within(ctx).IsZero() {
		err = operator.ErrNothingToReplay
	}
	if err != nil {
		return nil, err
	}
	shown := replayOf(ctx, started)
	out.Status, out.Body.Replay = http.StatusAccepted, &shown
	return out, nil
}

type replaysInput struct {
	OfSink
	OfTenant
}

type replaysOutput struct {
	Body struct {
		Replays []Replay `json:"replays" nullable:"false" doc:"Newest first, at most 1 000"`
	}
}

func (s *server) listReplays(ctx context.Context, in *replaysInput) (*replaysOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	replays, err := s.operator.Replays(ctx, in.Sink, tenant)
	if errors.Is(err, operator.ErrSinkNotFound) && !within(ctx).IsZero() { // as when starting one
		err = nil
	}
	if err != nil {
		return nil, err
	}
	out := &replaysOutput{}
	out.Body.Replays = make([]Replay, len(replays))
	for i, r := range replays {
		out.Body.Replays[i] = replayOf(ctx, r)
	}
	return out, nil
}

type replayInput struct {
	OfSink
	Replay string `path:"replay" format:"uuid" doc:"Id of the replay"`
	ForAudit
}

type replayOutput struct{ Body Replay }

// stopReplay answers with the replay's state afterwards.
func (s *server) stopReplay(ctx context.Context, in *replayInput) (*replayOutput, error) {
	id, err := outbox.ParseID(in.Replay)
	if err != nil {
		return nil, invalidInput.because("", Fault{Parameter: "replay", Detail: "is no replay's id"})
	}
	tenant := within(ctx)
	if err := s.by(ctx).Because(in.Reason).StopReplay(ctx, in.Sink, tenant, id); err != nil {
		return nil, err
	}
	r, err := s.operator.Replay(ctx, in.Sink, tenant, id)
	if err != nil {
		return nil, afterAct(err)
	}
	return &replayOutput{Body: replayOf(ctx, r)}, nil
}
