package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// report counts and logs what a settling statement did. What it did not match had
// lost its lease, unless the handler's own transaction had completed the job, its
// deadline has come, or an earlier try had committed before its connection broke.
func (d *Dispatcher) report(batch []*attempt, stored []pgtype.UUID, retried bool) {
	d.announceEnds(batch)
	if len(stored) == len(batch) {
		for _, a := range batch {
			d.reportStored(a)
		}
		return
	}
	matched := make(map[[16]byte]bool, len(stored))
	for _, id := range stored {
		matched[id.Bytes] = true
	}
	for _, a := range batch {
		switch {
		case matched[a.job.ID]:
			d.reportStored(a)
		case a.err == nil && a.job.Completed():
			a.outcome = outcome{status: outbox.Succeeded}
			d.reportStored(a)
		case !a.until.IsZero() && !time.Now().Before(a.until): // a reaper was faster
			a.outcome = outcome{status: outbox.Expired, message: a.outcome.message}
			d.reportStored(a)
		case retried:
			d.log.LogAttrs(context.Background(), slog.LevelWarn, "outcome stored by an earlier try, or lease lost",
				a.attrs("lease_unknown", slog.String("outcome", a.outcome.status.String()))...)
		default:
			d.metrics.leasesLost.Inc()
			d.log.LogAttrs(context.Background(), slog.LevelWarn, "lease_lost",
				a.attrs("lease_lost", slog.String("outcome_refused", a.outcome.status.String()))...)
		}
	}
}

func (d *Dispatcher) reportStored(a *attempt) {
	a.route.counts.attempts[a.outcome.status.String()].Inc()
	switch a.outcome.status {
	case outbox.Succeeded:
		a.route.counts.succeeded.Inc()
		if d.log.Enabled(context.Background(), slog.LevelInfo) {
			d.log.LogAttrs(context.Background(), slog.LevelInfo, "job_completed",
				a.attrs("job_completed", slog.Float64("duration_ms", milliseconds(a.took)))...)
		}
		return
	case outbox.Cancelled, outbox.Expired:
		event := "job_" + a.outcome.status.String()
		d.log.LogAttrs(context.Background(), slog.LevelInfo, event, a.attrs(event,
			slog.String("error", a.outcome.message), slog.Float64("duration_ms", milliseconds(a.took)))...)
		return
	case outbox.Retrying:
		d.reportFailure(a, slog.LevelWarn)
	case outbox.Failed:
		a.route.counts.failed.Inc()
		d.reportFailure(a, slog.LevelError)
	case outbox.Dead:
		a.route.counts.dead.Inc()
		d.reportFailure(a, slog.LevelError)
	}
	if !a.outcome.keepDue || a.unused || a.route.dies {
		a.queue.poke() // its next start, or its hook's, may come before what the queue sleeps for
	}
}

func (d *Dispatcher) reportFailure(a *attempt, level slog.Level) {
	o := a.outcome
	d.log.LogAttrs(context.Background(), level, "job_failed", a.attrs("job_failed",
		slog.String("error_code", o.code), slog.String("error", o.message),
		slog.Bool("will_retry", o.status == outbox.Retrying), slog.String("status", o.status.String()),
		slog.Float64("duration_ms", milliseconds(a.took)))...)
}
