package dispatcher

import (
	"log/slog"
	"time"
)

// overrunAfter is how long a handler may go on after its time is over before that is
// reported.
const overrunAfter = 5 * time.Second

// reportOverrun reports a handler that does not return although its time is over: it
// ignores the end of its context. It keeps its worker, and no other sign of it is seen
// from outside until its lease lapses. It is called when the time is over.
func (a *attempt) reportOverrun() {
	began := time.Now()
	time.AfterFunc(overrunAfter, func() {
		if a.returned.Load() {
			return
		}
		a.route.counts.overruns.Inc()
		a.queue.log.LogAttrs(a.queue.jobs, slog.LevelWarn, "handler_overrun", a.Attrs("handler_overrun",
			slog.String("late", time.Since(began).Round(time.Second).String()),
			slog.String("hint", "the handler ignores the end of its context and keeps its worker until it returns"))...)
	})
}
