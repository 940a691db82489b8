package api

import (
	"context"
	"time"
)

// Worker is a dispatcher as it last reported itself, which it does every minute.
type Worker struct {
	Name      string         `json:"name" doc:"As in the leases"`
	Version   string         `json:"version" doc:"Of its program"`
	Present   bool           `json:"present" doc:"False: it was not seen for longer than it takes to be seen twice"`
	Queues    map[string]int `json:"queues" nullable:"false" doc:"And how many jobs of each it runs at once"`
	Kinds     []string       `json:"kinds" nullable:"false" doc:"With a handler"`
	Hearing   bool           `json:"hearing" doc:"Whether wake-ups reach it; otherwise it polls"`
	Running   int64          `json:"running" doc:"Jobs that it holds leases of"`
	StartedAt time.Time      `json:"startedAt"`
	SeenAt    time.Time      `json:"seenAt"`
}

type workersOutput struct {
	Body struct {
		Workers []Worker `json:"workers" nullable:"false" doc:"By name"`
	}
}

func (s *server) listWorkers(ctx context.Context, _ *struct{}) (*workersOutput, error) {
	workers, err := s.operator.Workers(ctx)
	if err != nil {
		return nil, err
	}
	out := &workersOutput{}
	out.Body.Workers = make([]Worker, len(workers))
	for i, w := range workers {
		out.Body.Workers[i] = Worker{
			Name: w.Name, Version: w.Version, Present: !w.Missing, Queues: w.Queues, Kinds: w.Kinds, Hearing: w.Hearing, Running: w.Running,
			StartedAt: utc(w.StartedAt), SeenAt: utc(w.SeenAt),
		}
		if w.Kinds == nil {
			out.Body.Workers[i].Kinds = []string{}
		}
	}
	return out, nil
}
