package client

import (
	"context"
	"time"
)

// Bridge is how messages of a broker become jobs.
type Bridge struct {
	Bridge  string    `json:"bridge"`
	State   string    `json:"state"`  // fetching, away, or waiting, which is for a process that fetches
	Stored  int64     `json:"stored"` // messages that were stored as jobs or dead letters, repeats included
	MovedAt time.Time `json:"movedAt,omitzero"`
	Lag     *int64    `json:"lag,omitempty"` // messages behind those that were fetched; nil is not known

	AwaySince time.Time `json:"awaySince,omitzero"` // since when something keeps it from storing messages
	AwayFor   string    `json:"awayFor,omitempty"`  // what, in the words of the broker's client
}

type bridgesAnswer struct {
	Bridges []Bridge `json:"bridges"`
}

// Bridges lists the bridges by name. It takes a token of all tenants.
func (c *Client) Bridges(ctx context.Context) ([]Bridge, error) {
	answer, err := ask[bridgesAnswer](ctx, c, get("/bridges", nil))
	return answer.Bridges, err
}
