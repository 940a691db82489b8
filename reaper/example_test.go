package reaper_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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
