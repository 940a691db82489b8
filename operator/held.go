package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// HeldMessage is a message that a sink has refused, or a later one of the same key. It is an open job: once it is a
// dead letter, it can be replayed, edited or dismissed like others.
type HeldMessage struct {
	Job                // without payload, headers, result and attempts; its Key is the event's
	Event    outbox.ID // the ID by which consumers drop repeats
	Topic    string
	Position int64     // in the log
	At       time.Time // when the event was stored
}

// HeldPlace is the place behind which a page of [Operator.Held] begins. Zero means the beginning.
type HeldPlace struct {
	Position int64
	Job      outbox.ID
}

// Place returns the message's place.
func (m HeldMessage) Place() HeldPlace { return HeldPlace{m.Position, m.Job.ID} }

// Held lists up to limit messages of a sink that are jobs (0 means 50; at most 200), in the order of the log. For the
// next page, pass the last one's Place as after. It returns [ErrSinkNotFound].
func (o *Operator) Held(ctx context.Context, sink string, after HeldPlace, limit int) ([]HeldMessage, error) {
	most, err := pageLimit("limit", limit)
	if err := errors.Join(err, validSink(sink)); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListHeld(ctx, sqlgen.ListHeldParams{
		Sink: sink, AfterPosition: after.Position, AfterJobID: pgvalue.UUID(after.Job),
		MaxRows: most,
	})
	if err != nil {
		return nil, fmt.Errorf("list held messages of sink %s: %w", sink, err)
	}
	if len(rows) == 0 {
		if _, err := o.Sink(ctx, sink); err != nil {
			return nil, fmt.Errorf("list held messages of %w", err)
		}
	}
	messages := make([]HeldMessage, len(rows))
	for i, row := range rows {
		m := HeldMessage{Job: fromRow(row.Shown()), Position: row.Position}
		if about, err := engine.ParseHeldEvent(row.Event); err == nil { // else somebody has changed the job by hand
			m.Topic, m.At = about.Topic, about.At
			m.Event, _ = outbox.ParseID(about.ID)
		}
		messages[i] = m
	}
	return messages, nil
}
