package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrSinkInUse reports that a process publishes to the sink, or has done so within the last minute.
var ErrSinkInUse = errors.New("a process publishes to the sink, or did within the last minute")

// ErrSinkMoved reports that a sink has reached or passed the position to which it was to be moved.
var ErrSinkMoved = errors.New("the sink has reached or passed that position meanwhile: look again")

// ErrSinkHolds reports that messages of the sink are open jobs, which no process would run any more.
var ErrSinkHolds = errors.New(
	"messages that it has refused, or that are behind those, are open jobs: publish or dismiss them first, or give them up")

// countTimeout limits statements that read many events.
const countTimeout = time.Minute

// SinkTarget is where a sink is to continue: exactly one of the fields must be set.
type SinkTarget struct {
	Position *int64    // after this position; 0 is the beginning of the log
	Since    time.Time // with the first event that was stored from then on
	End      bool      // after the last event
}

func (t SinkTarget) validate() error {
	set := 0
	for _, is := range []bool{t.Position != nil, !t.Since.IsZero(), t.End} {
		if is {
			set++
		}
	}
	if set != 1 {
		return invalid.Field("SinkTarget", "has %d fields that are set, want one: Position, Since or End", set)
	}
	return nil
}

// SinkMove is the effect of moving a sink.
type SinkMove struct {
	From, To int64 // positions in the log; the sink continues after To
	Events   int64 // not published if it moves forward; published again if it moves back
}

// WouldSeekSink returns what [Operator.SeekSink] would do. It returns [ErrSinkNotFound], and an [*outbox.InvalidError]
// for a position that the log does not have, and for a target that is none or several.
func (o *Operator) WouldSeekSink(ctx context.Context, sink string, to SinkTarget) (SinkMove, error) {
	if err := errors.Join(validSink(sink), to.validate()); err != nil {
		return SinkMove{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	position, err := o.positionOf(ctx, to)
	if err != nil {
		return SinkMove{}, fmt.Errorf("find the position: %w", err)
	}
	moves, err := o.db.SinkMove(ctx, position, sink)
	if err := onSink("seek", sink, len(moves), err); err != nil {
		return SinkMove{}, err
	}
	if err := inLog("SinkTarget.Position", position, moves[0].Last); err != nil {
		return SinkMove{}, err
	}
	return SinkMove{From: moves[0].Top, To: position, Events: moves[0].Events}, nil
}

func (o *Operator) positionOf(ctx context.Context, to SinkTarget) (int64, error) {
	switch {
	case to.Position != nil:
		return *to.Position, nil
	case to.End:
		return o.db.PositionSince(ctx, until(time.Time{}))
	}
	return o.db.PositionSince(ctx, from(to.Since))
}

// SeekSink makes a sink continue after a position. When it moves forward, the sink never publishes the events in
// between, except those of open transactions, if they are among the last ten thousand positions. When it moves back,
// the sink publishes events again, with the same ids. Messages that the sink's owner is sending may still be published.
// SeekSink returns what it has done, and the errors of [Operator.WouldSeekSink] and [Operator.MoveSink].
func (o *Operator) SeekSink(ctx context.Context, sink string, to SinkTarget) (SinkMove, error) {
	move, err := o.WouldSeekSink(ctx, sink, to)
	if err != nil {
		return move, err
	}
	return o.MoveSink(ctx, sink, move)
}

// MoveSink makes a move that [Operator.WouldSeekSink] returned, so that someone can review it first, and returns what
// it has done: the sink may have come from elsewhere. It returns [ErrSinkMoved] if the sink has reached or passed the
// position since: what was to skip events would publish some again, or the other way round.
func (o *Operator) MoveSink(ctx context.Context, sink string, move SinkMove) (SinkMove, error) {
	if err := validSink(sink); err != nil {
		return move, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	found, err := o.db.SeekSink(ctx, sqlgen.SeekSinkParams{
		Sink: sink, Position: move.To, SeenAt: move.From,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	if err := onSink("seek", sink, len(found), err); err != nil {
		return move, err
	}
	now := found[0]
	if now.Moved {
		return SinkMove{From: now.Was, To: move.To, Events: now.Events}, nil
	}
	if err := inLog("SinkMove.To", move.To, now.Last); err != nil {
		return move, err
	}
	return move, fmt.Errorf("seek sink %s from %d to %d: it is at %d: %w", sink, move.From, move.To, now.Was, ErrSinkMoved)
}

// inLog returns an error for a position that a log with this last one does not have.
func inLog(field string, position, last int64) error {
	if position < 0 || position > last {
		return invalid.Field(field, "is %d, want 0 to %d, where the log ends", position, last)
	}
	return nil
}

// RemoveSink deletes a sink. A relay with the sink in its configuration declares it again, as a new one, which begins
// where the configuration says. RemoveSink returns [ErrSinkNotFound], [ErrSinkInUse], and [ErrSinkHolds] unless giveUp
// is set: then it first closes the jobs of the sink's messages, each with an audit entry: it cancels waiting ones and
// dismisses dead letters.
func (o *Operator) RemoveSink(ctx context.Context, sink string, giveUp bool) error {
	if err := validSink(sink); err != nil {
		return err
	}
	found, err := o.removeSink(ctx, sink)
	if err == nil && found.Free && found.Held > 0 && giveUp {
		if err := o.giveUpHeld(ctx, sink); err != nil {
			return fmt.Errorf("remove sink %s: %w", sink, err)
		}
		found, err = o.removeSink(ctx, sink)
	}
	switch {
	case err != nil:
		return err
	case !found.Free:
		return fmt.Errorf("remove sink %s: %w", sink, ErrSinkInUse)
	case found.Held > 0:
		return fmt.Errorf("remove sink %s: %d %w", sink, found.Held, ErrSinkHolds)
	}
	return nil
}

func (o *Operator) removeSink(ctx context.Context, sink string) (sqlgen.RemoveSinkRow, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	found, err := o.db.RemoveSink(ctx, sqlgen.RemoveSinkParams{
		Sink: sink, Actor: o.by.actor, RequestID: o.by.requestID,
		Reason: o.by.reason,
	})
	if err := onSink("remove", sink, len(found), err); err != nil {
		return sqlgen.RemoveSinkRow{}, err
	}
	return found[0], nil
}

// giveUpHeld closes the jobs of a sink's messages. It leaves a job whose process was killed while publishing: that runs
// until its lease has lapsed.
func (o *Operator) giveUpHeld(ctx context.Context, sink string) error {
	o = o.unconditional()
	for after := (HeldPlace{}); ; {
		page, err := o.Held(ctx, sink, after, MaxLimit)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, m := range page {
			after = m.Place()
			if m.Status == outbox.Failed || m.Status == outbox.Dead {
				err = o.Dismiss(ctx, m.Job.ID)
			} else {
				_, err = o.Cancel(ctx, m.Job.ID)
			}
			if _, moved := errors.AsType[*StatusError](err); err != nil && !moved && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
	}
}
