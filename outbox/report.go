package outbox

import (
	"context"
	"log/slog"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
)

// Progress reports how far the handler is: current of total, in any unit; a total of 0 means unknown. The newest report
// is shown with the job (posthaste jobs show, Operator.Progress), also after it is closed.
//
// Progress never waits for the database, so it may be called for every record of a file. Reports are stored a few times
// a second, those of all jobs of the process together, and the last one before the outcome. A message is cut after 500
// bytes. A report that cannot be stored does not fail the job.
//
// Progress returns an [*InvalidError] for a negative number, [ErrLeaseLost] once the job is known to belong to this
// attempt no longer, or else the cause of ctx if that has ended. A loop that returns the error therefore stops when it
// is asked to. Several goroutines of the handler may call Progress and Log.
func (c *Claimed) Progress(ctx context.Context, current, total int64, message string) error {
	switch {
	case current < 0:
		return invalid("current", "is %d, want at least 0", current)
	case total < 0:
		return invalid("total", "is %d, want at least 0; 0 is not known", total)
	}
	if r := engine.InternalOf(c).Recorder; r != nil {
		if err := r.Progress(current, total, pgvalue.Text(message, engine.MaxProgressBytes)); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Log adds a line to the job's own log, which keeps the newest 200: use it for answers to a user's questions about this
// one job (posthaste jobs logs, Operator.Logs). A message is cut after 1000 bytes. Log stores lines as
// [Claimed.Progress] stores reports and returns the same errors; levels beyond ±1000 are not acceptable.
func (c *Claimed) Log(ctx context.Context, level slog.Level, message string) error {
	if level < -1000 || level > 1000 {
		return invalid("level", "is %d, want -1000 to 1000", int(level))
	}
	if r := engine.InternalOf(c).Recorder; r != nil {
		if err := r.Log(level, pgvalue.Text(message, engine.MaxLogBytes)); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
