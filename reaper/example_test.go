package reaper_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// How do I set how long closed jobs and dead letters are kept, by status and by queue?
func Example_retention() {
	keep := func(ctx context.Context, pool *pgxpool.Pool) error {
		const day = 24 * time.Hour
		r, err := reaper.New(pool, reaper.Config{
			KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: 7 * day, outbox.Dead: 180 * day},
			KeepByQueue:  map[string]map[outbox.Status]time.Duration{"mail": {outbox.Succeeded: 2 * day}},
		})
		if err != nil {
			return err // names each field that is not acceptable
		}
		return r.Run(ctx) // app.Run does it for you, by app.Config.KeepByStatus and KeepByQueue
	}
	_ = keep
}

// How do I run a reaper without package app? Any number of them may run.
func ExampleReaper_Run() {
	reap := func(ctx context.Context, pool *pgxpool.Pool) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		wake := listener.NewSignal() // a deadline that comes soon
		l, err := listener.New("", dispatcher.Channel, wake, listener.Config{Pool: pool, Canary: pool})
		if err != nil {
			return err
		}
		r, err := reaper.New(pool, reaper.Config{Wake: wake, Listening: l.Listening})
		if err != nil {
			return err
		}
		listening := make(chan error, 1)
		go func() { listening <- l.Run(ctx) }()
		err = r.Run(ctx) // until ctx ends
		stop()
		return errors.Join(err, <-listening)
	}
	_ = reap
}
