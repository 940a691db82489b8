package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

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

// Held begins with the cursor that is remembered for the place, or else reads from the first page on.
func (r *remote) Held(ctx context.Context, sink string, after operator.HeldPlace,
	limit int,
) (all []operator.HeldMessage, err error) {
	at := func(p operator.HeldPlace) string { return fmt.Sprintf("%q %d %s", sink, p.Position, p.Job) }
	cursor, known := r.cursors[at(after)]
	for more := !known || cursor != ""; more && len(all) < limit; more = cursor != "" {
		want := limit - len(all)
		if !known && len(all) == 0 {
			want = operator.MaxLimit // most of them may be passed over
		}
		page, err := r.heldPage(ctx, sink, want, cursor)
		if err != nil {
			return nil, err
		}
		cursor = page.Next
		for _, m := range page.Messages {
			found := operator.HeldMessage{
				Job: jobOf(m.Job), Topic: m.Topic, Position: m.Position, At: m.At, Event: idOf(m.Event),
			}
			if known || behind(found.Place(), after) {
				all = append(all, found)
			}
		}
	}
	if len(all) > limit { // the place after them has no cursor
		return all[:limit], nil
	}
	if len(all) > 0 {
		r.cursors[at(all[len(all)-1].Place())] = cursor
	}
	return all, nil
}

func (r *remote) heldPage(ctx context.Context, sink string, limit int, cursor string) (client.HeldPage, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	return r.api.HeldPage(ctx, sink, limit, cursor)
}

// behind reports whether a message at p comes after one at the other place.
func behind(p, other operator.HeldPlace) bool {
	return cmp.Or(cmp.Compare(p.Position, other.Position), bytes.Compare(p.Job[:], other.Job[:])) > 0
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
