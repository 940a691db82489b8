package api

import (
	"context"
	"time"
)

// Bridge turns messages of a broker into jobs.
type Bridge struct {
	Bridge  string    `json:"bridge"`
	State   string    `json:"state" enum:"fetching,away,waiting" doc:"away: something prevents it from storing messages. waiting: no process fetches its messages"`
	Stored  int64     `json:"stored" doc:"Messages that were stored as jobs or dead letters, repeats included"`
	MovedAt time.Time `json:"movedAt,omitzero" doc:"When messages were last stored"`
	Lag     *int64    `json:"lag,omitempty" doc:"Messages not yet fetched, as the broker last reported; omitted if it never did"`

	AwaySince  time.Time `json:"awaySince,omitzero" doc:"Since when it has stored no messages, because the broker is unavailable or the queue of jobs is full"`
	AwayReason string    `json:"awayReason,omitempty" doc:"The reason: the error of the broker's client"`
}

type bridgesOutput struct {
	Body struct {
		Bridges []Bridge `json:"bridges" nullable:"false" doc:"Ordered by name"`
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
			Bridge: b.Name, State: b.State(), Stored: b.Stored, MovedAt: utc(b.MovedAt), Lag: b.Lag,
			AwaySince: utc(b.AwaySince), AwayReason: b.AwayReason,
		}
	}
	return out, nil
}
