package api

import (
	"context"
	"time"
)

// Bridge turns messages of a broker into jobs.
type Bridge struct {
	Bridge  string    `json:"bridge"`
	State   string    `json:"state" enum:"fetching,away,waiting" doc:"away: something keeps it from storing messages. waiting: no process fetches its messages"`
	Stored  int64     `json:"stored" doc:"Messages that were stored as jobs or dead letters, repeats included"`
	MovedAt time.Time `json:"movedAt,omitzero" doc:"When messages were stored last"`
	Lag     *int64    `json:"lag,omitempty" doc:"Messages behind those that were fetched, when the broker said so last; left out if it never did"`

	AwaySince time.Time `json:"awaySince,omitzero" doc:"Since when it stores no messages: the broker is away, or its queue is full"`
	AwayFor   string    `json:"awayFor,omitempty" doc:"Why, in the words of the broker's client"`
}

type bridgesOutput struct {
	Body struct {
		Bridges []Bridge `json:"bridges" nullable:"false" doc:"By name"`
	}
}

func (s *server) listBridges(ctx context.Context, _ *struct{}) (*bridgesOutput, error) {
	bridges, err := s.operator.Bridges(ctx)
	if err != nil {
		return nil, err
	}
	out := &bridgesOutput{}
	out.Body.Bridges = make([]Bridge, len(bridges))
	for i, b := range bridges {
		out.Body.Bridges[i] = Bridge{
			Bridge: b.Name, State: b.State(), Stored: b.Stored, MovedAt: utc(b.MovedAt), Lag: b.Lag, AwaySince: utc(b.AwaySince), AwayFor: b.AwayReason,
		}
	}
	return out, nil
}
