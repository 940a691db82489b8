package reaper

import (
	"context"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// repeater repeats chores, a goroutine for each. It is the place where the reaper's errors are logged and waited out.
type repeater struct {
	leave      func(error) // the server, if the error says that it is read-only
	log        *slog.Logger
	complaints outage.Complaints
}

// repeat does a chore until ctx ends, each time after the wait that the chore asks for.
func (r *repeater) repeat(ctx context.Context, name string, chore func(context.Context) (time.Duration, error), retry backoff.Backoff) {
	for ctx.Err() == nil {
		wait, err := chore(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.leave(err)
			if missed, due := r.complaints.Due(complaint(name, err), time.Now()); due {
				r.log.LogAttrs(ctx, slog.LevelWarn, "chore failed", slog.String("chore", name), slog.Int("since_last_line", missed), slog.Any("err", err))
			}
			wait = retry.Next()
		default:
			retry.Reset()
		}
		_ = backoff.Sleep(ctx, wait)
	}
}

// complaint is what an error is logged as: while the server is out of reach
// every chore fails of the same cause, which is logged once for all of them.
func complaint(chore string, err error) string {
	if pgsession.State(err) == "" {
		return "no answer"
	}
	return chore
}

// budget keeps what is long to a tenth of the time: it rests for so many times as long as it took.
const budget = 9
