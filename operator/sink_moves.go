package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// ErrSinkInUse says that a process publishes to the sink, or has done so within the last
// minute.
var ErrSinkInUse = errors.New("a process publishes to the sink, or did within the last minute")

// countTimeout bounds statements that go through many events.
const countTimeout = time.Minute

// SinkTarget is where a sink is to go on: one of the fields.
type SinkTarget struct {
	Position int64     // behind this position
	Since    time.Time // with the first event that was stored from then on
	End      bool      // behind the last event
}

// SinkMove is what it means to move a sink.
type SinkMove struct {
	From, To int64 // positions in the log; the sink goes on behind To
	Events   int64 // that are not published, if it goes forward, or again, if it goes back
}

// WouldSeekSink returns what [Operator.SeekSink] would do. It returns [ErrSinkNotFound], and
// an [*outbox.InvalidError] for a position that the log does not have.
func (o *Operator) WouldSeekSink(ctx context.Context, sink string, to SinkTarget) (SinkMove, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	position := to.Position
	if to.End || !to.Since.IsZero() {
		since := pgtype.Timestamptz{Time: to.Since, Valid: true}
		if to.End {
			since = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		}
		var err error
		if position, err = o.db.PositionSince(ctx, since); err != nil {
			return SinkMove{}, fmt.Errorf("find the position: %w", err)
		}
	}
	moves, err := o.db.SinkMove(ctx, position, sink)
	if err := onSink("seek", sink, len(moves), err); err != nil {
		return SinkMove{}, err
	}
	if position < 0 || position > moves[0].Last {
		return SinkMove{}, invalid.Field("position", "is %d, want 0 to %d, where the log ends", position, moves[0].Last)
	}
	return SinkMove{From: moves[0].Top, To: position, Events: moves[0].Events}, nil
}

// SeekSink has a sink go on behind a position. Forward it never publishes the events between;
// those of transactions that are open are published, if they are among the last ten thousand
// positions. Back it publishes again, with the same ids. What the sink's owner has under way
// may still be published. It returns what it has done, and errors as [Operator.WouldSeekSink].
func (o *Operator) SeekSink(ctx context.Context, sink string, to SinkTarget) (SinkMove, error) {
	move, err := o.WouldSeekSink(ctx, sink, to)
	if err != nil {
		return move, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	moved, err := o.db.SeekSink(ctx, sqlgen.SeekSinkParams{
		Sink: sink, Position: move.To, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	if err := onSink("seek", sink, len(moved), err); err != nil {
		return move, err
	}
	move.From = moved[0].Was
	return move, nil
}

// RemoveSink forgets a sink. A relay that has it in its configuration makes it known again, as
// a new one, which begins with the oldest event. It returns [ErrSinkNotFound], and
// [ErrSinkInUse].
func (o *Operator) RemoveSink(ctx context.Context, sink string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.RemoveSink(ctx, sqlgen.RemoveSinkParams{Sink: sink, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason})
	if err := onSink("remove", sink, len(found), err); err != nil {
		return err
	}
	if !found[0].Removed {
		return fmt.Errorf("remove sink %s: %w", sink, ErrSinkInUse)
	}
	return nil
}
