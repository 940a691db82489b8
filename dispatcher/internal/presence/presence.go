// Package presence keeps a dispatcher's row in outbox.workers, the list of dispatchers that operators see.
//
// The row is there from the first answer of the database until Keep returns, or for some time after the process has
// died. It shows within Config.Notice whether the process listens for notifications. Nothing but the list depends on
// it: no failure is logged, and no job waits for it.
package presence

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const interval = time.Minute // between two statements while nothing changes

// Config describes the row and how it is stored.
type Config struct {
	DB        Statements
	Row       sqlgen.ShowWorkerParams // except Hearing
	Listening func() bool             // is what Hearing shows
	Notice    time.Duration           // the longest time until the row shows that Listening has changed
	Timeout   time.Duration           // of a statement that shows the row

	// Last returns the context of the statement that removes the row.
	Last func() (context.Context, context.CancelFunc)
}

// Statements lists the statements of Keep.
type Statements interface {
	ShowWorker(context.Context, sqlgen.ShowWorkerParams) error
	RemoveWorker(context.Context, string) error
}

// Keep shows the row until ctx ends, and then removes it.
func Keep(ctx context.Context, c Config) {
	var retry backoff.Backoff
	var due time.Time
	show := func(now time.Time) {
		listens := c.Listening()
		if listens == c.Row.Hearing && now.Before(due) {
			return
		}
		c.Row.Hearing, due = listens, now.Add(interval)
		bound, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		if c.DB.ShowWorker(bound, c.Row) == nil {
			retry.Reset()
		} else {
			due = now.Add(retry.Next())
		}
	}
	show(time.Now())
	backoff.Every(ctx, c.Notice, show)
	bound, cancel := c.Last()
	defer cancel()
	_ = c.DB.RemoveWorker(bound, c.Row.Worker)
}
