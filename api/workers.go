package api

import (
	"context"
	"time"
)

// Worker is a dispatcher as it last reported itself, which it does every minute.
type Worker struct {
	Name      string         `json:"name" doc:"Name, as in the leases"`
	Version   string         `json:"version" doc:"Version of its program"`
	Present   bool           `json:"present" doc:"False if it has not been seen for two reporting intervals"`
	Queues    map[string]int `json:"queues" nullable:"false" doc:"Queues, with the number of jobs of each that it runs at once"`
	Kinds     []string       `json:"kinds" nullable:"false" doc:"Kinds with a handler"`
	Listening bool           `json:"listening" doc:"Whether notifications reach it; otherwise it polls"`
	Running   int64          `json:"running" doc:"Jobs whose leases it holds"`
	StartedAt time.Time      `json:"startedAt"`
	SeenAt    time.Time      `json:"seenAt"`
}

type workersOutput struct {
	Body struct {
		Workers []Worker `json:"workers" nullable:"false" doc:"Ordered by name"`
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
			Name: w.Name, Version: w.Version, Present: !w.Missing, Queues: w.Queues, Kinds: w.Kinds, Listening: w.Listening,
			Running:   w.Running,
			StartedAt: utc(w.StartedAt), SeenAt: utc(w.SeenAt),
		}
		if w.Kinds == nil {
			out.Body.Workers[i].Kinds = []string{}
		}
	}
	return out, nil
}
