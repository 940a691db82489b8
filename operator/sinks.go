package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrSinkNotFound reports that no relay has ever published to a sink of that name.
var ErrSinkNotFound = errors.New("sink not found")

// ErrNotWaiting reports that a sink has published or passed the event already, or that there is no such event.
var ErrNotWaiting = errors.New("the event does not wait for the sink")

// Sink is the progress of publishing events to a broker.
type Sink struct {
	Name      string
	Owner     string // the process that publishes; "" if none
	Published int64  // messages so far; after a crash some count twice
	// Lag is how many positions of the log lie ahead of the sink's; some have no event.
	Lag int64
	// Holes is how many positions the sink has passed at which no event was visible yet.
	Holes int64
	// HeldMessages is how many messages are jobs because the sink has refused them or an earlier one of their key, and
	// HeldKeys how many keys these have. [Operator.Held] lists them.
	HeldMessages, HeldKeys int64
	Oldest                 time.Time // when the first unpublished event was stored; zero if there is none
	MovedAt                time.Time // when messages were last published; zero if never
	PausedAt               time.Time // zero unless an operator has paused it
	AwaySince              time.Time // since when it is stopped; zero unless it is
	AwayCode               string    // why, such as relay_unavailable
	AwayReason             string    // the client library's message
}

// Sinks returns all sinks by name.
func (o *Operator) Sinks(ctx context.Context) ([]Sink, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListSinks(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sinks: %w", err)
	}
	sinks := make([]Sink, len(rows))
	for i, row := range rows {
		sinks[i] = Sink{
			Name: row.Sink, Owner: row.Owner, Published: row.Published, Lag: max(0, row.Last-row.Top), Holes: row.Holes,
			HeldMessages: row.HeldMessages, HeldKeys: row.HeldKeys,
			Oldest: row.Oldest.Time, MovedAt: row.MovedAt.Time, PausedAt: row.PausedAt.Time,
			AwaySince: row.AwaySince.Time, AwayCode: row.AwayCode, AwayReason: row.AwayMessage,
		}
	}
	return sinks, nil
}

// Sink returns one sink, or [ErrSinkNotFound].
func (o *Operator) Sink(ctx context.Context, name string) (Sink, error) {
	sinks, err := o.Sinks(ctx)
	if err != nil {
		return Sink{}, err
	}
	for _, s := range sinks {
		if s.Name == name {
			return s, nil
		}
	}
	return Sink{}, fmt.Errorf("sink %s: %w", name, ErrSinkNotFound)
}

// These equal relay.CodeStuck and relay.CodeWaiting.
const (
	codeStuck   = "relay_stuck"
	codeWaiting = "relay_waiting"
)

// LacksDestination reports whether what stops the sink is one of its destinations, while it goes on with others.
// AwayReason names the destination.
func (s Sink) LacksDestination() bool {
	switch s.AwayCode {
	case "relay_no_destination", "relay_full", "relay_no_leader", "relay_silent":
		return true
	}
	return false
}

// State returns what the sink does: publishing, away, stuck (it has refused more messages than it may, or more wait for
// destinations that accept nothing), paused, or waiting (for a process that publishes).
func (s Sink) State() string {
	switch {
	case !s.PausedAt.IsZero():
		return "paused"
	case s.Owner == "":
		return "waiting"
	case s.AwayCode == codeStuck || s.AwayCode == codeWaiting:
		return "stuck"
	case !s.AwaySince.IsZero():
		return "away"
	}
	return "publishing"
}

// PauseSink makes a sink publish nothing until [Operator.ResumeSink]: its owner learns of it within two seconds.
// Pausing a paused sink changes nothing. It returns [ErrSinkNotFound].
func (o *Operator) PauseSink(ctx context.Context, sink string) error {
	if err := validSink(sink); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.PauseSink(ctx, sqlgen.PauseSinkParams{
		Sink: sink, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	})
	return onSink("pause", sink, len(found), err)
}

// ResumeSink lets a sink continue. Resuming a sink that is not paused changes nothing. It returns [ErrSinkNotFound].
func (o *Operator) ResumeSink(ctx context.Context, sink string) error {
	if err := validSink(sink); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.ResumeSink(ctx, sqlgen.ResumeSinkParams{
		Sink: sink, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	})
	return onSink("resume", sink, len(found), err)
}

// validSink refuses what cannot be the name of a sink, because Postgres cannot compare it with one.
func validSink(sink string) error { return validTexts(map[string]string{"sink": sink}) }

func onSink(act, sink string, found int, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s sink %s: %w", act, sink, err)
	case found == 0:
		return fmt.Errorf("%s sink %s: %w", act, sink, ErrSinkNotFound)
	}
	return nil
}

// SkipEvent makes a sink never publish an event that waits for it, such as one at which it is stuck; others of its key
// are published. A message that is being published at the moment may still be. It returns [ErrNotWaiting], also for a
// message that has become a job because the broker refused it: see [Operator.Held].
func (o *Operator) SkipEvent(ctx context.Context, sink string, event outbox.ID) error {
	if err := validSink(sink); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	waiting, err := o.db.FindUnpublished(ctx, sink, pgvalue.UUID(event))
	if err == nil && len(waiting) > 0 {
		var skipped []sqlgen.SkipEventRow
		skipped, err = o.db.SkipEvent(ctx, sqlgen.SkipEventParams{
			Sink: sink, Position: waiting[0].Position, TenantID: waiting[0].TenantID, EventID: pgvalue.UUID(event),
			Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
		})
		if err == nil && len(skipped) > 0 {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("skip event %s for sink %s: %w", event, sink, err)
	}
	return fmt.Errorf("skip event %s for sink %s: %w", event, sink, ErrNotWaiting)
}
