package reaper

import (
	"context"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// A repeater repeats chores, each in its own goroutine. It logs the reaper's errors and retries after them.
type repeater struct {
	leave      func(error) // leaves the server if the error shows that it is read-only
	log        *slog.Logger
	complaints outage.Complaints
}

// repeat runs a chore until ctx ends, waiting each time as long as the chore asks.
func (r *repeater) repeat(ctx context.Context, name string, chore func(context.Context) (time.Duration, error),
	retry backoff.Backoff,
) {
	for ctx.Err() == nil {
		wait, err := chore(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.leave(err)
			if missed, due := r.complaints.Due(complaint(name, err), time.Now()); due {
				r.log.LogAttrs(ctx, slog.LevelWarn, "chore failed", slog.String("chore", name),
					slog.Int("since_last_line", missed), slog.Any("err", err))
			}
			wait = retry.Next()
		default:
			retry.Reset()
		}
		_ = backoff.Sleep(ctx, wait)
	}
}

// complaint returns the log message for an error: while the server is unreachable, every chore fails for the same
// reason, which is logged once for all of them.
func complaint(chore string, err error) string {
	if pgsession.State(err) == "" {
		return "no answer"
	}
	return chore
}

// budget limits long chores to a tenth of the time: a chore rests for so many times as long as it took.
const budget = 9
