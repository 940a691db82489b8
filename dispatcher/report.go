package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// reporter counts and logs the ends of attempts, and notifies other processes and waiting callers.
type reporter struct {
	*common
	db       reportStatement
	waiters  *notifier    // of callers waiting for jobs: one has ended
	peers    *notifier    // of the other processes: there may be jobs for them
	failures outage.Flood // limits log lines about failures
}

type reportStatement interface {
	FindEnds(ctx context.Context, ids []pgtype.UUID, epochs []int64) ([]sqlgen.FindEndsRow, error)
	StreamRefused(ctx context.Context, arg sqlgen.StreamRefusedParams) error
}

func newReporter(p *common, db reportStatement, waiters, peers *notifier) *reporter {
	r := &reporter{common: p, db: db, waiters: waiters, peers: peers}
	r.failures.Summary = r.sumUpFailures
	return r
}

// report counts and logs what a settlement did. An attempt that it did not match has lost its lease, with three
// exceptions: the handler's own transaction has completed the job, whatever outcome the handler returned; a reaper has
// ended the job at its deadline; or an earlier try had committed before its connection broke.
//
// A settlement that does not match an attempt locks the job's row until it ends, and claims pass by the job meanwhile.
// So everybody looks again.
func (r *reporter) report(batch []*attempt, retried bool) {
	if slices.ContainsFunc(batch, endsForWaiters) {
		r.waiters.notify()
	}
	if slices.ContainsFunc(batch, r.needsNotify) {
		r.peers.notify()
	}
	for _, a := range batch {
		if a.stored {
			r.reportStored(a)
		}
	}
	unmatched := unstored(batch)
	ended, err := r.ended(unmatched, retried)
	var lost []*attempt
	for _, a := range unmatched {
		switch status := ended[a.job.ID]; {
		case status == outbox.Succeeded:
			a.outcome = outcome.Outcome{Status: outbox.Succeeded}
			r.reportStored(a)
		case status == outbox.Expired:
			a.outcome = outcome.Outcome{Status: outbox.Expired, Message: a.outcome.Message}
			r.reportStored(a)
		case retried || err != nil && mayHaveEnded(a):
			a.capacity.Poke() // the next start of what the earlier try has stored
			r.log.LogAttrs(a.traced, slog.LevelWarn,
				"outcome stored by an earlier try, or lease lost",
				a.Attrs("lease_unknown", slog.String("outcome", string(a.outcome.Status)))...)
		default:
			lost = append(lost, a)
			a.capacity.Poke()
			r.metrics.leasesLost.Inc()
			r.log.LogAttrs(a.traced, slog.LevelWarn, "lease_lost",
				a.Attrs("lease_lost", slog.String("outcome_refused", string(a.outcome.Status)))...)
		}
	}
	if len(lost) > 0 {
		r.peers.notify()
	}
	r.streamRefused(lost)
}

// streamRefused stores an event for each streamed job whose outcome was refused. Only observers read these events: if
// they cannot be stored, that is logged and not tried again.
func (r *reporter) streamRefused(lost []*attempt) {
	if len(lost) == 0 {
		return
	}
	p := sqlgen.StreamRefusedParams{Worker: r.worker}
	p.Ids, p.Epochs, _ = fencesOf(lost)
	for _, a := range lost {
		p.Attempts, p.Outcomes = append(p.Attempts, int32(a.job.Attempt)), append(p.Outcomes, string(a.outcome.Status))
	}
	ctx, cancel := r.boundSettling()
	defer cancel()
	if err := r.db.StreamRefused(ctx, p); err != nil {
		r.log.LogAttrs(ctx, slog.LevelWarn, "refused outcomes are not in the stream", slog.Int("jobs", len(lost)),
			slog.Any("err", err))
	}
}

// ended searches the history for attempts that a settlement did not match and that may have ended their jobs all the
// same, and returns how they did. A handler whose COMMIT was not answered returns the error, as it should; the row of
// (id, epoch) shows whether the transaction committed.
func (r *reporter) ended(unmatched []*attempt, retried bool) (map[outbox.ID]outbox.Status, error) {
	var possible []*attempt
	for _, a := range unmatched {
		if mayHaveEnded(a) || retried && a.outcome.Status == outbox.Succeeded {
			possible = append(possible, a)
		}
	}
	if len(possible) == 0 {
		return nil, nil
	}
	ids, epochs, _ := fencesOf(possible)
	ctx, cancel := r.boundSettling()
	defer cancel()
	found, err := r.db.FindEnds(ctx, ids, epochs)
	if err != nil {
		return nil, err // they are reported as unknown
	}
	ended := make(map[outbox.ID]outbox.Status, len(found))
	for _, row := range found {
		ended[row.ID.Bytes] = outbox.Status(row.Status)
	}
	return ended, nil
}

// mayHaveEnded reports whether something other than a settlement may have ended the attempt's job: the handler's own
// transaction, or a reaper at the deadline.
func mayHaveEnded(a *attempt) bool {
	return engine.InternalOf(a.job).Completed.Load() || !a.deadline.IsZero() && !time.Now().Before(a.deadline)
}

func idSet(ids []pgtype.UUID) map[[16]byte]bool {
	set := make(map[[16]byte]bool, len(ids))
	for _, id := range ids {
		set[id.Bytes] = true
	}
	return set
}

// needsNotify reports whether other processes must be notified of a job. When this process no longer claims, no timer
// of the others knows when the job is due.
//
// The others are notified of a job that goes back as it was, even though this process looks as well: "The lock that
// stays, without a key" (docs/races.md). A job that asks to be run again at once wakes nobody, because a job that does
// so all the time would keep every process awake. In this rare case the job waits for the next look of any process, at
// most for a poll interval.
func (r *reporter) needsNotify(a *attempt) bool {
	switch a.outcome.Status {
	case outbox.Pending:
		return a.outcome.KeepDue || !r.phase.isClaiming()
	case outbox.Retrying:
		return !r.phase.isClaiming()
	}
	return false
}

// endsForWaiters reports whether callers wait for the job and it may have ended. A job whose handler called Complete
// counts, whatever its outcome: the handler itself may have settled it.
func endsForWaiters(a *attempt) bool {
	open := a.outcome.Status == outbox.Pending || a.outcome.Status == outbox.Retrying
	return engine.InternalOf(a.job).Watched && (!open || engine.InternalOf(a.job).Completed.Load())
}

func (r *reporter) reportStored(a *attempt) {
	a.route.counts.attempts[string(a.outcome.Status)].Inc()
	if completed := a.route.counts.completed[a.outcome.Status]; completed != nil {
		completed.Inc()
	}
	duration := slog.Float64("duration_ms", float64(a.took.Microseconds())/1000)
	switch a.outcome.Status {
	case outbox.Succeeded:
		if r.logJobs == LogAll && r.log.Enabled(a.traced, slog.LevelInfo) {
			r.log.LogAttrs(a.traced, slog.LevelInfo, "job_completed", a.Attrs("job_completed", duration)...)
		}
		return
	case outbox.Cancelled, outbox.Expired:
		if r.logJobs == LogAll {
			event := "job_" + string(a.outcome.Status)
			r.log.LogAttrs(a.traced, slog.LevelInfo, event,
				a.Attrs(event, slog.String("error", a.outcome.Message), duration)...)
		}
		return
	case outbox.Retrying, outbox.Failed, outbox.Dead:
		r.reportFailure(a, duration)
	}
	if !a.outcome.KeepDue || a.returned || a.route.dies {
		a.capacity.Poke() // its next start, or its hook's, may come before the queue wakes
	}
}

// reportFailure logs a failure. It logs the first few of similar failures and sums up the others.
func (r *reporter) reportFailure(a *attempt, duration slog.Attr) {
	level, attrs := failureLine(a)
	if r.logJobs == LogNone || !r.log.Enabled(a.traced, level) ||
		!r.failures.Logs(string(a.outcome.Status)+failureMark(a), a) {
		return
	}
	r.log.LogAttrs(a.traced, level, "job_failed", a.Attrs("job_failed", append(attrs, duration)...)...)
}

// sumUpFailures logs how many failures like the last one were not logged individually.
func (r *reporter) sumUpFailures(n int, last any) {
	a := last.(*attempt)
	level, attrs := failureLine(a)
	r.log.LogAttrs(a.traced, level, "jobs_failed", slices.Concat(
		[]slog.Attr{slog.String("event", "jobs_failed"), slog.Int("jobs", n), slog.String("kind", a.job.Kind)},
		attrs, []slog.Attr{slog.String("fingerprint", failureMark(a))})...)
}

// failureLine returns the level of a log line about a failure, and what all of these lines say.
func failureLine(a *attempt) (slog.Level, []slog.Attr) {
	o, level := a.outcome, slog.LevelError
	if o.Status == outbox.Retrying {
		level = slog.LevelWarn
	}
	return level, []slog.Attr{
		slog.String("error_code", o.Code), slog.String("error", o.Message),
		slog.Bool("will_retry", o.Status == outbox.Retrying), slog.String("status", string(o.Status)),
	}
}

func failureMark(a *attempt) string {
	return fingerprint.Of(a.job.Kind, a.outcome.Code, a.outcome.Message)
}
