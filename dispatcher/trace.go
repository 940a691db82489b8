package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// freshFor bounds the delay after which an attempt still belongs to the trace in which its job was stored.
const freshFor = time.Minute

// trace begins the span of a handler's call, for one attempt or the attempts of a batch, and returns the span's
// context. It returns ctx if the program does not use package tracing.
func (p *common) trace(ctx context.Context, attempts ...*attempt) context.Context {
	t := engine.Tracing()
	if t == nil {
		return ctx
	}
	first := attempts[0]
	job := first.job
	s := engine.SpanStart{
		Operation: engine.OpProcess, Name: job.Kind, Destination: job.Queue, Count: len(attempts), Worker: p.worker,
		Tenant: job.Tenant.String(),
	}
	for _, a := range attempts {
		s.Headers = append(s.Headers, a.job.Headers())
	}
	if len(attempts) == 1 {
		s.ID, s.Correlation, s.Attempt, s.Epoch = job.ID.String(), job.Caller().CorrelationID, job.Attempt, job.Epoch
		s.Fresh = job.Attempt == 1 && job.StartedAt.Sub(job.RunAt) <= freshFor &&
			job.StartedAt.Sub(job.CreatedAt) <= freshFor
	}
	s.Failed = failedSpans(ctx, attempts)
	ctx, first.span = t.Start(ctx, s)
	sampled := first.span.TraceID() != ""
	for _, a := range attempts {
		a.traced = ctx
		of := first.span.Inject(nil)
		engine.InternalOf(a.job).Trace = of
		if sampled {
			a.spanned = of[engine.HeaderTraceParent]
		}
	}
	return ctx
}

// failedSpans looks up the spans of the attempts before these. Jobs that are claimed for the first time have none. If
// the database does not answer in time, a link is missing, which is better than an attempt that waits for it.
func failedSpans(ctx context.Context, attempts []*attempt) []engine.FailedSpan {
	var again []pgtype.UUID
	for _, a := range attempts {
		if a.job.Epoch > 1 {
			again = append(again, pgvalue.UUID(a.job.ID))
		}
	}
	if len(again) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	found, err := attempts[0].reports.FailedSpans(ctx, again)
	if err != nil {
		return nil
	}
	return found
}

// spansOf returns the spans of attempts, for the attempts that follow them, or nil if none is sampled.
func spansOf(attempts []*attempt) (traces []string) {
	for i, a := range attempts {
		if a.spanned != "" {
			if traces == nil {
				traces = make([]string, len(attempts))
			}
			traces[i] = a.spanned
		}
	}
	return traces
}

// endSpan ends the span of a handler's call when the outcomes are decided. The span of a batch ends with the outcome
// that its jobs share, or "mixed", and with the failure of the first job that failed.
func endSpan(attempts ...*attempt) {
	traced := slices.IndexFunc(attempts, func(a *attempt) bool { return a.span != nil })
	if traced < 0 {
		return
	}
	var same, code, message string
	for i, a := range attempts {
		o := a.outcome
		if i == 0 {
			same = string(o.Status)
		} else if same != string(o.Status) {
			same = "mixed"
		}
		switch o.Status {
		case outbox.Retrying, outbox.Failed, outbox.Dead:
			if message == "" && code == "" {
				code, message = o.Code, o.Message
			}
		}
	}
	attempts[traced].span.End(same, code, message)
}

// observe records a duration of the attempt, with its trace as an exemplar.
func (a *attempt) observe(o prometheus.Observer, d time.Duration) {
	if a.span != nil {
		if id := a.span.TraceID(); id != "" {
			if example, ok := o.(prometheus.ExemplarObserver); ok {
				example.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": id})
				return
			}
		}
	}
	o.Observe(d.Seconds())
}
