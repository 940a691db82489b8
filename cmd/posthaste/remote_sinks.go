package main

import (
	"context"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (r *remote) Sinks(ctx context.Context) ([]operator.Sink, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Sinks(ctx)
	sinks := make([]operator.Sink, len(found))
	for i, s := range found {
		sinks[i] = operator.Sink{
			Name: s.Sink, Owner: s.Owner, Published: s.Published, Lag: s.Lag, Holes: s.Holes, HeldMessages: s.Held,
			HeldKeys: s.HeldKeys,
			Oldest:   s.OldestAt, MovedAt: s.MovedAt, PausedAt: s.PausedSince,
		}
		if s.Away != nil {
			sinks[i].AwaySince, sinks[i].AwayCode, sinks[i].AwayReason = s.Away.Since, s.Away.Code, s.Away.Message
		}
	}
	return sinks, err
}

func (r *remote) PauseSink(ctx context.Context, sink string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.PauseSink(ctx, sink)
	return err
}

func (r *remote) ResumeSink(ctx context.Context, sink string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.ResumeSink(ctx, sink)
	return err
}

func (r *remote) SkipEvent(ctx context.Context, sink string, event outbox.ID) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.SkipEvent(ctx, sink, client.SkippedEvent{Event: event.String(), Reason: r.reason})
	return err
}

// Held lists the first of them: a page of the API begins with a cursor rather than a place.
func (r *remote) Held(ctx context.Context, sink string, _ operator.HeldPlace,
	limit int,
) ([]operator.HeldMessage, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	page, err := r.api.HeldPage(ctx, sink, limit, "")
	all := make([]operator.HeldMessage, len(page.Messages))
	for i, m := range page.Messages {
		all[i] = operator.HeldMessage{
			Job: jobOf(m.Job), Topic: m.Topic, Position: m.Position, At: m.At,
			Event: idOf(m.Event),
		}
	}
	return all, err
}

func (r *remote) Bridges(ctx context.Context) ([]operator.Bridge, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Bridges(ctx)
	bridges := make([]operator.Bridge, len(found))
	for i, b := range found {
		bridges[i] = operator.Bridge{
			Name: b.Bridge, Fetching: b.State != "waiting", Stored: b.Stored, MovedAt: b.MovedAt, Lag: b.Lag,
			AwaySince: b.AwaySince, AwayReason: b.AwayReason,
		}
	}
	return bridges, err
}
