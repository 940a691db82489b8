package operator

import (
	"context"
	"fmt"
	"time"
)

// A Bridge turns messages of a broker into jobs.
type Bridge struct {
	Name     string
	Fetching bool      // some process fetches, and its lease has not lapsed
	Stored   int64     // messages stored as jobs or dead letters, repeats included
	MovedAt  time.Time // when messages were last stored; zero if never
	SeenAt   time.Time // MovedAt, or if that is zero, when a process first took the bridge

	Lag        *int64    // messages behind the fetched ones, by the broker's last report; nil if it never reported
	AwaySince  time.Time // since when it stores none although there are some, or the broker is away; else zero
	AwayReason string    // why, in the client's words
}

// State returns what the bridge does: fetching, away (something keeps it from fetching), or waiting (for a process that
// fetches).
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
			Name: row.Bridge, Fetching: row.Fetching, Stored: row.Stored, MovedAt: row.MovedAt.Time,
			SeenAt:    row.SeenAt.Time,
			AwaySince: row.AwaySince.Time, AwayReason: row.AwayMessage,
		}
		if row.Lag >= 0 {
			bridges[i].Lag = new(row.Lag)
		}
	}
	return bridges, nil
}
