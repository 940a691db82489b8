package operator

import (
	"context"
	"fmt"
	"time"
)

// Bridge is how messages of a broker become jobs.
type Bridge struct {
	Name     string
	Fetching bool      // by some process, whose lease lasts
	Stored   int64     // messages that were stored as jobs or dead letters, repeats included
	MovedAt  time.Time // when some were stored last; zero if never
	SeenAt   time.Time // MovedAt, or if that is zero when a process had the bridge first

	Lag        *int64    // messages behind those that it has fetched, when the broker said so last; nil if it never did
	AwaySince  time.Time // since when it stores none although there are some, or the broker is away; zero unless so
	AwayReason string    // why, in the client's words
}

// State is what the bridge does, in a word: fetching, away, which is that something keeps it from that, or waiting,
// which is for a process that fetches.
func (b Bridge) State() string {
	switch {
	case !b.Fetching:
		return "waiting"
	case !b.AwaySince.IsZero():
		return "away"
	}
	return "fetching"
}

// Bridges returns all bridges by name.
func (o *Operator) Bridges(ctx context.Context) ([]Bridge, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListBridges(ctx)
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	bridges := make([]Bridge, len(rows))
	for i, row := range rows {
		bridges[i] = Bridge{
			Name: row.Bridge, Fetching: row.Fetching, Stored: row.Stored, MovedAt: row.MovedAt.Time, SeenAt: row.SeenAt.Time,
			AwaySince: row.AwaySince.Time, AwayReason: row.AwayMessage,
		}
		if row.Lag >= 0 {
			bridges[i].Lag = new(row.Lag)
		}
	}
	return bridges, nil
}
