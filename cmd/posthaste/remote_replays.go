package main

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (r *remote) newReplay(e operator.EventReplay) client.NewReplay {
	return client.NewReplay{
		Tenant: textOf(e.Tenant), Since: e.Since, Until: e.Until, Topics: e.Topics, Key: e.Key,
		RatePerSecond: e.PerSecond, Again: e.Again, StopLive: e.StopLive, Reason: r.reason,
	}
}

func (r *remote) WouldReplayEvents(ctx context.Context, sink string,
	e operator.EventReplay,
) (operator.ReplayPlan, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	which := r.newReplay(e)
	which.DryRun = true
	a, err := r.api.StartReplay(ctx, sink, which)
	return operator.ReplayPlan{
		Events: a.Events, Oldest: a.OldestAt, Newest: a.NewestAt, Until: a.Until, Takes: seconds(a.TakesSeconds),
		Dropped: a.Dropped, Remembers: seconds(a.RememberSeconds),
	}, err
}

func (r *remote) ReplayEvents(ctx context.Context, sink string, e operator.EventReplay) (operator.Replay, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	a, err := r.api.StartReplay(ctx, sink, r.newReplay(e))
	if err != nil || a.Replay == nil {
		return operator.Replay{}, err
	}
	return operatorsReplay(*a.Replay), nil
}

func (r *remote) Replays(ctx context.Context, sink string, tenant outbox.ID) ([]operator.Replay, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Replays(ctx, sink, textOf(tenant))
	all := make([]operator.Replay, len(found))
	for i, one := range found {
		all[i] = operatorsReplay(one)
	}
	return all, err
}

// Replay searches for it among those of the sink.
func (r *remote) Replay(ctx context.Context, sink string, _, id outbox.ID) (operator.Replay, error) {
	all, err := r.Replays(ctx, sink, outbox.ID{})
	for _, one := range all {
		if one.ID == id {
			return one, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("replay %s of sink %s: %w", id, sink, operator.ErrReplayNotFound)
	}
	return operator.Replay{}, err
}

func (r *remote) StopReplay(ctx context.Context, sink string, _, id outbox.ID) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.StopReplay(ctx, sink, id.String())
	return err
}

func operatorsReplay(r client.Replay) operator.Replay {
	return operator.Replay{
		ID: idOf(r.ID), Sink: r.Sink,
		EventReplay: operator.EventReplay{
			EventFilter: operator.EventFilter{
				Since: r.Since, Until: r.Until, Topics: r.Topics, Key: r.Key,
				Tenant: idOf(r.Tenant),
			},
			PerSecond: r.RatePerSecond, Again: r.Again, StopLive: r.StopLive,
		},
		Events: r.Events, Published: r.Published, Refused: r.Refused, Repeated: r.Repeated, Failure: r.WaitsFor,
		Actor: r.Actor, Reason: r.Reason,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt, Stopped: r.State == "stopped",
	}
}

func (r *remote) newJobReplay(h operator.JobReplay) client.NewHistoryReplay {
	return client.NewHistoryReplay{
		Tenant: textOf(h.Tenant), Kind: h.Kind, Since: h.Since, Until: h.Until, Key: h.Key, RatePerSecond: h.PerSecond,
		Again: h.Again, Reason: r.reason,
	}
}

func historyPlan(a client.HistoryReplay) operator.HistoryPlan {
	return operator.HistoryPlan{
		Jobs: a.Jobs, Bytes: a.Bytes, Oldest: a.OldestAt, Newest: a.NewestAt, Until: a.Until,
		Takes: seconds(a.TakesSeconds),
	}
}

func (r *remote) WouldReplayHistory(ctx context.Context, h operator.JobReplay) (operator.HistoryPlan, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	which := r.newJobReplay(h)
	which.DryRun = true
	a, err := r.api.ReplayHistory(ctx, which)
	return historyPlan(a), err
}

func (r *remote) ReplayHistory(ctx context.Context, h operator.JobReplay) (outbox.ID, operator.HistoryPlan, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	a, err := r.api.ReplayHistory(ctx, r.newJobReplay(h))
	return idOf(a.Replay), historyPlan(a), err
}
