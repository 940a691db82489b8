package listener_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/listener"
)

// A worker is woken, and also looks for itself: seldom while the listener hears, often while it does not.
func Example() {
	work := func(ctx context.Context, pool *pgxpool.Pool, connString string) error {
		wake := listener.NewSignal()
		l, err := listener.New(connString, "outbox_jobs", wake, listener.Config{
			Canary:      pool,
			Logger:      slog.Default(),
			Registerer:  prometheus.DefaultRegisterer,
			OnListening: func(bool) { wake.Set() }, // apply the new poll interval at once
		})
		if err != nil {
			return err
		}
		listening := make(chan error, 1)
		go func() { listening <- l.Run(ctx) }()

		for ctx.Err() == nil {
			poll := time.Second
			if l.Listening() {
				poll = 30 * time.Second
			}
			select {
			case <-ctx.Done():
			case <-wake:
			case <-time.After(poll):
			}
			// Scan for work here.
		}
		return <-listening
	}
	_ = work
}
