package client

import (
	"context"
	"encoding/json"
)

// Kind is a kind of job whose payloads are validated.
type Kind struct {
	Kind   string          `json:"kind"`
	Schema json.RawMessage `json:"schema"` // JSON Schema of the payload
}

type kindsAnswer struct {
	Kinds []Kind `json:"kinds"`
}

// Kinds lists the kinds whose payloads are validated. Jobs of other kinds are accepted with any payload.
func (c *Client) Kinds(ctx context.Context) ([]Kind, error) {
	answer, err := ask[kindsAnswer](ctx, c, get("/kinds", nil))
	return answer.Kinds, err
}
