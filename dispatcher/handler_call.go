package dispatcher

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// carryOut runs the attempt, or the attempts of its batch, and calls onDone when their outcomes are decided. took is
// how long the handler ran, or notCalled. If a handler calls runtime.Goexit, as t.FailNow does, this goroutine ends:
// then done is false, and carryOut does not return.
func carryOut(p *common, a *attempt, onDone func(took time.Duration, done bool)) {
	started, took, done := time.Now(), notCalled, false
	defer func() {
		if !done {
			took = time.Since(started)
			for _, one := range a.together() {
				if one.outcome.Status == "" { // a hook or a backoff policy ended the goroutine
					one.err, one.took = outcome.ErrExited, took
					one.outcome = one.route.config.policy().Fail(one.job, one.err)
				}
			}
		}
		endSpan(a.together()...)
		onDone(took, done)
	}()
	if a.batch != nil {
		took = runBatch(p, a.batch)
	} else {
		took = run(p, a)
	}
	done = true
}

// run calls the handler and decides the job's outcome. It returns notCalled if the job may not run any more.
func run(p *common, a *attempt) (took time.Duration) {
	timeout := a.job.Timeout
	if timeout <= 0 {
		timeout = a.route.config.Timeout
	}
	started := time.Now()
	limit, overLimit := started.Add(timeout), ErrTimeout
	if !a.deadline.IsZero() && a.deadline.Before(limit) {
		limit, overLimit = a.deadline, ErrDeadline
	}
	ctx, cancel := context.WithCancelCause(p.handlerContext)
	defer cancel(nil)
	if begin(p, a, cancel, started, timeout) != nil {
		return notCalled
	}
	defer time.AfterFunc(limit.Sub(started), func() {
		cancel(overLimit)
		reportOverrun(p, a)
	}).Stop()
	running := p.trace(attemptContext{ctx, limit}, a)
	engine.InternalOf(a.job).Context = running
	p.noteStart(a, started)
	a.err = outcome.ErrExited // unless the handler returns
	defer func() {
		a.handlerDone.Store(true)
		took = time.Since(started)
		a.finish(took, outcome.CauseOf(ctx))
	}()
	a.err = outcome.Call(running, a.route.handler, a.job)
	return took
}

// runBatch calls the handler with the jobs that may still run, and decides the outcome of each. It returns notCalled if
// there are none.
func runBatch(p *common, b *batch) (took time.Duration) {
	r := b.attempts[0].route
	started := time.Now()
	ctx, cancel := context.WithCancelCause(context.WithValue(p.handlerContext, batchKey{}, b))
	defer cancel(nil)
	b.cancel, b.left = cancel, len(b.attempts)
	b.ended, b.cancels = map[*outbox.Claimed]error{}, map[*outbox.Claimed][]context.CancelCauseFunc{}

	var running []*attempt
	var jobs []*outbox.Claimed
	for _, a := range b.attempts {
		cancelOne := func(cause error) { b.end(a, cause) }
		if refused := begin(p, a, cancelOne, started, r.config.Timeout); refused != nil {
			b.end(a, refused)
			continue
		}
		if !a.deadline.IsZero() {
			defer time.AfterFunc(a.deadline.Sub(started), func() { b.end(a, ErrDeadline) }).Stop()
		}
		running, jobs = append(running, a), append(jobs, a.job)
	}
	if len(running) == 0 {
		return notCalled
	}
	defer time.AfterFunc(r.config.Timeout, func() {
		cancel(ErrTimeout)
		reportOverrun(p, running[0])
	}).Stop()
	within := p.trace(attemptContext{ctx, started.Add(r.config.Timeout)}, running...)
	for _, a := range running {
		engine.InternalOf(a.job).Context = within
		p.noteStart(a, started, slog.Int("batch", len(b.attempts)))
	}
	outcomes := slices.Repeat([]error{outcome.ErrExited}, len(running)) // unless the handler returns
	defer func() {
		running[0].handlerDone.Store(true)
		cause := outcome.CauseOf(ctx)
		took = time.Since(started)
		for i, a := range running {
			a.err = outcomes[i]
			a.finish(took, cmp.Or(b.whyEnded(a), cause))
		}
	}()
	outcomes = callMany(within, r.many, jobs)
	return took
}

// begin marks an attempt as running. If its handler may no longer be called, begin decides the attempt's outcome
// instead and returns the reason.
func begin(p *common, a *attempt, cancel context.CancelCauseFunc, now time.Time,
	timeout time.Duration,
) (refused error) {
	// cutOff does not know of jobs that are claimed while the grace period ends.
	if !a.lease.Begin(cancel, now, now.Add(timeout+p.leaseTTL)) || p.phase.isCutOff() {
		a.outcome = outcome.Interrupted
		return outbox.ErrLeaseLost
	}
	if !a.deadline.IsZero() && !a.deadline.After(now) {
		a.outcome = outcome.PastDeadline
		return ErrDeadline
	}
	return nil
}

// noteStart counts and logs that a handler is called.
func (p *common) noteStart(a *attempt, now time.Time, attrs ...slog.Attr) {
	a.observe(a.route.counts.startDelay, a.job.StartedAt.Sub(a.job.RunAt)+now.Sub(a.lease.Claimed))
	if p.logJobs == LogAll && p.log.Enabled(a.traced, slog.LevelInfo) {
		p.log.LogAttrs(a.traced, slog.LevelInfo, "job_claimed", a.Attrs("job_claimed", attrs...)...)
	}
}

// finish decides the outcome of a job whose handler has returned a.err.
func (a *attempt) finish(took time.Duration, cause error) {
	a.took = took
	a.follows, a.extra = engine.InternalOf(a.job).FollowUps.End(len(a.job.Payload))
	a.observe(a.route.counts.processing, took)
	a.outcome, a.err = a.route.config.policy().Decide(a.job, a.err, cause)
}

// attemptContext gives the handler's context its deadline. One context and a timer cost half as much as two nested
// contexts, and every job pays it.
type attemptContext struct {
	context.Context
	deadline time.Time
}

func (c attemptContext) Deadline() (time.Time, bool) { return c.deadline, true }

// callMany calls the handler of a batch, and turns a panic into the outcome of every job.
func callMany(ctx context.Context, m *many, jobs []*outbox.Claimed) (outcomes []error) {
	if panicked := outcome.Catch(func() { outcomes = m.handle(ctx, jobs) }); panicked != nil {
		outcomes = make([]error, len(jobs))
		for i := range outcomes {
			outcomes[i] = panicked
		}
	}
	return outcomes
}

const overrunAfter = 5 * time.Second

// reportOverrun, called when a handler's time is over, reports it if it has not returned overrunAfter later: it ignores
// the end of its context. It keeps its worker, and nothing else shows this from outside until its lease lapses.
func reportOverrun(p *common, a *attempt) {
	began := time.Now()
	time.AfterFunc(overrunAfter, func() {
		if a.handlerDone.Load() {
			return
		}
		a.route.counts.overruns.Inc()
		p.log.LogAttrs(p.handlerContext, slog.LevelWarn, "handler_overrun", a.Attrs("handler_overrun",
			slog.String("late", time.Since(began).Round(time.Second).String()),
			slog.String("hint", "the handler ignores the end of its context and keeps its worker until it returns"))...)
	})
}
