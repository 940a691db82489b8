package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// system is River as its documentation shows it: the pgx driver, and one client that inserts and works.
type system struct {
	settings
	pool     *pgxpool.Pool
	producer *river.Client[pgx.Tx]
	params   sync.Pool // of *[]river.InsertManyParams: the memory of a large batch is kept for the next
}

type noop struct {
	N int `json:"n"`
}

func (noop) Kind() string { return "noop" }

func (s *system) Migrate(ctx context.Context) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	s.producer, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{Logger: quiet(), FetchCooldown: s.cooldown})
	return err
}

func (s *system) Open() (table, condition string) {
	return "river_job", `state IN ('available', 'running', 'retryable')`
}

// EnqueueMany uses COPY, which River calls its fast way.
func (s *system) EnqueueMany(ctx context.Context, first, n int) error {
	kept, _ := s.params.Get().(*[]river.InsertManyParams)
	if kept == nil || cap(*kept) < n {
		kept = new(make([]river.InsertManyParams, n))
	}
	defer s.params.Put(kept)
	params := (*kept)[:n]
	for i := range params {
		params[i].Args = noop{first + i}
	}
	_, err := s.producer.InsertManyFast(ctx, params)
	return err
}

func (s *system) Commit(ctx context.Context, job int, also func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := also(tx); err != nil {
			return err
		}
		_, err := s.producer.InsertTx(ctx, tx, noop{job}, nil)
		return err
	})
}

func (s *system) Work(ctx context.Context, handle func(context.Context, int)) (func() error, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[noop]) error {
		handle(ctx, job.Args.N)
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{
		Logger:               quiet(),
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.workers}},
		Workers:              workers,
		FetchCooldown:        s.cooldown,
		FetchPollInterval:    s.poll,
		RescueStuckJobsAfter: s.rescue,
		JobTimeout:           s.rescue,
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return client.Stop(context.WithoutCancel(ctx)) }, nil
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
