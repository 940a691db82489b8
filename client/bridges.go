package client

import (
	"context"
	"time"
)

// A Bridge turns messages of a broker into jobs.
type Bridge struct {
	Bridge  string    `json:"bridge"`
	State   string    `json:"state"`  // fetching, away, or waiting (for a process that fetches)
	Stored  int64     `json:"stored"` // messages stored as jobs or dead letters, repeats included
	MovedAt time.Time `json:"movedAt,omitzero"`
	Lag     *int64    `json:"lag,omitempty"` // messages behind the fetched ones; nil if unknown

	AwaySince  time.Time `json:"awaySince,omitzero"`   // since when something has kept it from storing messages
	AwayReason string    `json:"awayReason,omitempty"` // the obstacle, in the words of the broker's client
}

type bridgesAnswer struct {
	Bridges []Bridge `json:"bridges"`
}

// Bridges lists the bridges by name. It requires a token of all tenants.
func (c *Client) Bridges(ctx context.Context) ([]Bridge, error) {
	answer, err := ask[bridgesAnswer](ctx, c, get("/bridges", nil))
	return answer.Bridges, err
}
