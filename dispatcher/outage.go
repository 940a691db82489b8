package dispatcher

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// outages holds the circuit of each kind of a queue ([Unavailable], internal/outage.Circuit). 20 000 jobs behind a
// dead host cost as much as a few dozen, because only probes are claimed, and start at once when one has reached it.
//
// Claims leave jobs behind that a cursor then passes, so they begin at the front again when a kind is available again:
//
//	worker    a probe succeeds: closed, back, poke
//	claimer   a claim without the kind                 sees back: cursors to the front, a claim with it
//
// The claimer checks back before each claim, and after the poke it claims at least once more.
type outages struct {
	*common
	queue string
	waker *waker
	of    map[string]*outage.Circuit // by kind; never changed
	some  atomic.Int32               // how many circuits are not closed
	back  atomic.Bool                // a circuit has been closed since the claimer last checked
	shown sync.Mutex                 // held while a state is read and its metric is set
}

func newOutages(p *common, queue string, w *waker) *outages {
	o := &outages{common: p, queue: queue, waker: w, of: make(map[string]*outage.Circuit, len(p.kinds))}
	for _, kind := range p.kinds {
		o.of[kind] = outage.NewCircuit(w.poke)
	}
	return o
}

// claimable returns the kinds that are available.
func (o *outages) claimable() []string {
	if o.some.Load() == 0 {
		return o.kinds
	}
	return slices.DeleteFunc(slices.Clone(o.kinds), func(kind string) bool {
		return !o.isAvailable(kind)
	})
}

// isAvailable reports whether the kind's dependency is available, as far as this process knows.
func (o *outages) isAvailable(kind string) bool { return o.of[kind].State() == outage.Closed }

// mayRun reports whether a job that waited for a worker may run. It may not while its kind's dependency is unavailable.
func (o *outages) mayRun(a *attempt) bool {
	if o.some.Load() == 0 {
		return true
	}
	ok, probe := o.of[a.job.Kind].Admit()
	a.probe = probe
	return ok
}

// noteOutcome updates the kind's circuit with a finished attempt.
func (o *outages) noteOutcome(a *attempt) {
	c := o.of[a.job.Kind]
	switch findingOf(a) {
	case foundAway:
		err, _ := errors.AsType[*outcome.Unavailable](a.err)
		if opened := c.Away(a.probe, err.Wait); opened {
			o.some.Add(1)
			o.showOutage(a.job.Kind)
			o.logOutage(slog.LevelWarn, "kind unavailable: its jobs wait, and one is tried from time to time", a,
				slog.Any("err", a.err))
		} else if since, ok := c.Since(); ok && a.probe {
			o.logOutage(slog.LevelWarn, "kind still unavailable", a, slog.Duration("for", time.Since(since)),
				slog.Any("err", a.err))
		}
	case foundThere:
		if lasted, closed := c.Reached(); closed {
			o.some.Add(-1)
			o.showOutage(a.job.Kind)
			o.back.Store(true)
			o.waker.poke()
			o.logOutage(slog.LevelInfo, "kind available again", a, slog.Duration("after", lasted))
		}
	}
}

// showOutage sets the kind's metric. One worker may open the circuit while another closes it: the last one to get here
// sees the final state.
func (o *outages) showOutage(kind string) {
	o.shown.Lock()
	defer o.shown.Unlock()
	lasts := 0.0
	if o.of[kind].State() != outage.Closed {
		lasts = 1
	}
	o.metrics.unavailable.WithLabelValues(kind, o.queue).Set(lasts)
}

// logOutage logs a beginning or a probe at once, and repeats at most every ten seconds; ends are limited in the same
// way, because a dependency may come and go.
func (o *outages) logOutage(level slog.Level, message string, a *attempt, attrs ...slog.Attr) {
	what := fmt.Sprintf("%s of %s, again %t", a.job.Kind, o.queue, level == slog.LevelInfo)
	attrs = append([]slog.Attr{slog.String("kind", a.job.Kind), slog.String("queue", o.queue)}, attrs...)
	o.health.Say(o.handlerContext, level, what, message, attrs...)
}

// finding is what the end of an attempt reveals about the kind's dependency.
type finding int

const (
	foundNothing finding = iota
	foundAway
	foundThere
)

// findingOf returns what an attempt found. It returns foundNothing if the handler was stopped or not called, because
// then nothing tried the dependency.
func findingOf(a *attempt) finding {
	end := a.outcome
	if unavailable, ok := errors.AsType[*outcome.Unavailable](a.err); ok && end.OutageLimit > 0 {
		if unavailable.OfTarget {
			return foundThere // other jobs of the kind may find their targets available
		}
		return foundAway
	}
	switch {
	case errors.Is(a.err, outcome.ErrNotBegun):
		return foundNothing
	case end.Status == outbox.Pending && (end.KeepDue || end.Code != ""): // interrupted, cancelled, at its deadline
		return foundNothing
	case end.Code == codes.Timeout, end.Code == codes.UndecodablePayload, end.Code == codes.UnreadablePayload:
		return foundNothing
	}
	return foundThere
}
