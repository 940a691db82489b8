package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/outbox"
)

// outages are the kinds of a queue whose handlers may have found away what they need ([Unavailable]). After
// some such outcomes in a row the queue claims no jobs of the kind, and gives back those that have not
// started; what it claims instead are probes, one job at a time (internal/outage.Circuit). So 20,000 jobs
// behind a dead host cost what a few dozen do, and start at once when a probe has reached it.
//
// Claims leave jobs behind that a cursor then passes by, so they begin at the front again when a kind is back:
//
//	worker    a probe succeeds: closed, back, poke
//	claimer   a claim without the kind                 sees back: cursors to the front, a claim with it
//
// The claimer looks at back before each claim, and after the poke claims once more at least.
type outages struct {
	of    map[string]*outage.Circuit // by kind; never changed
	some  atomic.Int32               // how many are not closed
	back  atomic.Bool                // one has been closed since the claimer looked
	shown sync.Mutex                 // held from the look at a state until its metric is set
	probe string                     // the kind that the claim under way is a probe of; the claim loop's own
}

func (q *queue) newOutages() {
	q.outages.of = make(map[string]*outage.Circuit, len(q.kinds))
	for _, kind := range q.kinds {
		q.outages.of[kind] = outage.NewCircuit(q.poke)
	}
}

// claimable is the kinds that the next claim is for.
func (q *queue) claimable() []string {
	o := &q.outages
	switch {
	case o.probe != "":
		return []string{o.probe}
	case o.some.Load() == 0:
		return q.kinds
	}
	return slices.DeleteFunc(slices.Clone(q.kinds), func(kind string) bool { return o.of[kind].State() != outage.Closed })
}

// probeKinds claims a job of each kind of which a probe is due. Only the claim loop calls it.
func (q *queue) probeKinds(ctx context.Context) error {
	o := &q.outages
	if o.back.Swap(false) {
		q.sched.startFromFront()
		q.limit = firstBatch // what was away may soon be away again
	}
	if o.some.Load() == 0 {
		return nil
	}
	for _, kind := range q.kinds {
		if q.room() == 0 {
			return nil
		}
		if c := o.of[kind]; c.Probe() {
			started := time.Now()
			n, err := q.claimProbe(ctx, kind)
			q.claimed += n
			if n == 0 { // where it is dear to find none, it is done seldom
				c.NoProbe(restFactor * time.Since(started))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// claimProbe claims a job of the kind, wherever one is.
func (q *queue) claimProbe(ctx context.Context, kind string) (n int, err error) {
	q.outages.probe = kind
	defer func() { q.outages.probe = "" }()
	plain, keyed := q.sched.probe(time.Now())
	for _, p := range []claimPlan{plain, keyed} {
		if n == 0 && err == nil && !p.empty() {
			n, err = q.claim(ctx, p, func(places) claimPlan { return p })
		}
	}
	return n, err
}

// mayRun reports whether a job that waited for a worker may run, which it may not while what its kind needs is away.
func (q *queue) mayRun(a *attempt) bool {
	if q.outages.some.Load() == 0 {
		return true
	}
	ok, probe := q.outages.of[a.job.Kind].Admit()
	a.probe = probe
	return ok
}

// noteOutcome lets the kind's circuit learn from an attempt that is over.
func (q *queue) noteOutcome(a *attempt) {
	c := q.outages.of[a.job.Kind]
	switch findingOf(a) {
	case foundAway:
		err, _ := errors.AsType[*unavailableError](a.err)
		if opened := c.Away(a.probe, err.wait); opened {
			q.outages.some.Add(1)
			q.showOutage(a.job.Kind)
			q.logOutage(slog.LevelWarn, "kind unavailable: its jobs wait, and one is tried from time to time", a, slog.Any("err", a.err))
		} else if since, ok := c.Since(); ok && a.probe {
			q.logOutage(slog.LevelWarn, "kind still unavailable", a, slog.Duration("for", time.Since(since)), slog.Any("err", a.err))
		}
	case foundThere:
		if lasted, closed := c.Reached(); closed {
			q.outages.some.Add(-1)
			q.showOutage(a.job.Kind)
			q.outages.back.Store(true)
			q.poke()
			q.logOutage(slog.LevelInfo, "kind available again", a, slog.Duration("after", lasted))
		}
	}
}

// showOutage sets the kind's metric. One worker may open the circuit while another closes it: the last one to come
// here sees the state that stays.
func (q *queue) showOutage(kind string) {
	q.outages.shown.Lock()
	defer q.outages.shown.Unlock()
	lasts := 0.0
	if q.outages.of[kind].State() != outage.Closed {
		lasts = 1
	}
	q.metrics.unavailable.WithLabelValues(kind, q.name).Set(lasts)
}

// logOutage logs a beginning or a probe at once and then every ten seconds, and so an end: something may come and go.
func (q *queue) logOutage(level slog.Level, message string, a *attempt, attrs ...slog.Attr) {
	what := fmt.Sprintf("%s of %s, again %t", a.job.Kind, q.name, level == slog.LevelInfo)
	missed, due := q.health.complaints.Due(what, time.Now())
	if !due {
		return
	}
	attrs = append([]slog.Attr{slog.String("kind", a.job.Kind), slog.String("queue", q.name)}, attrs...)
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	q.log.LogAttrs(q.jobs, level, message, attrs...)
}

// finding is what the end of an attempt says of what the kind's jobs need.
type finding int

const (
	foundNothing finding = iota
	foundAway
	foundThere
)

// findingOf is foundNothing if the handler was stopped, or was not called: then nobody has asked.
func findingOf(a *attempt) finding {
	o := a.outcome
	if unavailable, ok := errors.AsType[*unavailableError](a.err); ok && o.outageLimit > 0 {
		if unavailable.ofTarget {
			return foundThere // other jobs of the kind may find theirs
		}
		return foundAway
	}
	switch {
	case o.status == outbox.Pending && (o.keepDue || o.code != ""): // interrupted, cancelled, at its deadline
		return foundNothing
	case o.code == outbox.CodeTimeout, o.code == outbox.CodeUndecodablePayload, o.code == outbox.CodeUnreadablePayload:
		return foundNothing
	}
	return foundThere
}

// Outage is a kind whose jobs wait in a queue of this process, because what they need is unavailable ([Unavailable]).
type Outage struct {
	Queue, Kind string
	Since       time.Time
}

// Outages returns those that last now, by queue and kind; none unless Run is at work.
func (d *Dispatcher) Outages() (all []Outage) {
	if !d.phase.isClaiming() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.config.Queues)) {
		for _, kind := range d.kinds {
			if since, lasts := d.queueNamed(name).outages.of[kind].Since(); lasts {
				all = append(all, Outage{name, kind, since})
			}
		}
	}
	return all
}
