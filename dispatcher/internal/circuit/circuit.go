// Package circuit keeps a queue from claiming jobs of a kind whose dependency is unavailable.
//
// Each kind of a queue has an outage.Circuit. Attempts whose handlers found the dependency unavailable open it, and the
// first one that reaches the dependency closes it again. While it is open only probes are claimed: 20 000 jobs behind a
// dead host cost as much as a few dozen, and start at once when one has reached it.
//
// Claims leave jobs behind that a cursor then passes, so they begin at the front again when a kind is available again:
//
//	worker    a probe succeeds: closed, back, poke
//	claimer   a claim without the kind                 sees back: cursors to the front, a claim with it
//
// The claimer calls Back before each claim, and after the poke it claims at least once more.
package circuit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Config is what the circuits of a queue need.
type Config struct {
	Queue       string
	Kinds       []string
	Poke        func() // makes the claim loop look: a probe is due, or a kind is available again
	Health      *health.Health
	Context     context.Context      // of log lines
	Unavailable *prometheus.GaugeVec // by kind and queue: 1 in an outage
}

// Circuits holds the circuit of each kind of a queue. It is safe for concurrent use.
type Circuits struct {
	Config
	of    map[string]*outage.Circuit // by kind; never changed
	back  atomic.Bool                // a circuit has been closed since Back was called last
	shown sync.Mutex                 // held while a state is read and its metric is set
}

// New returns circuits that are closed.
func New(c Config) *Circuits {
	all := &Circuits{Config: c, of: make(map[string]*outage.Circuit, len(c.Kinds))}
	for _, kind := range c.Kinds {
		all.of[kind] = outage.NewCircuit(c.Poke)
	}
	return all
}

// Claimable returns the kinds that are available, in the order of Config.Kinds. The caller must not change the list.
func (c *Circuits) Claimable() []string {
	away := func(kind string) bool { return !c.IsAvailable(kind) }
	if !slices.ContainsFunc(c.Kinds, away) {
		return c.Kinds
	}
	return slices.DeleteFunc(slices.Clone(c.Kinds), away)
}

// IsAvailable reports whether the kind's dependency is available, as far as this process knows.
func (c *Circuits) IsAvailable(kind string) bool { return c.of[kind].State() == outage.Closed }

// Admit reports whether a job of the kind that waited for a worker may run, and whether it does so as a probe. It may
// not run while the kind's dependency is unavailable, unless it is the probe.
func (c *Circuits) Admit(kind string) (ok, probe bool) { return c.of[kind].Admit() }

// Of returns the circuit of a kind.
func (c *Circuits) Of(kind string) *outage.Circuit { return c.of[kind] }

// Back reports whether a kind has become available again since the last call.
func (c *Circuits) Back() bool { return c.back.Swap(false) }

// Note updates the kind's circuit with the outcome of an attempt, and with what its handler returned.
func (c *Circuits) Note(kind string, probe bool, o outcome.Outcome, err error) {
	circuit := c.of[kind]
	switch findingOf(o, err) {
	case foundAway:
		unavailable, _ := errors.AsType[*outcome.Unavailable](err)
		if opened := circuit.Away(probe, unavailable.Wait); opened {
			c.show(kind)
			c.log(slog.LevelWarn, "kind unavailable: its jobs wait, and one is tried from time to time", kind,
				slog.Any("err", err))
		} else if since, ok := circuit.Since(); ok && probe {
			c.log(slog.LevelWarn, "kind still unavailable", kind, slog.Duration("for", time.Since(since)),
				slog.Any("err", err))
		}
	case foundThere:
		if lasted, closed := circuit.Reached(); closed {
			c.show(kind)
			c.back.Store(true)
			c.Poke()
			c.log(slog.LevelInfo, "kind available again", kind, slog.Duration("after", lasted))
		}
	}
}

// show sets the kind's metric. One worker may open the circuit while another closes it: the last one to get here sees
// the final state.
func (c *Circuits) show(kind string) {
	c.shown.Lock()
	defer c.shown.Unlock()
	lasts := 0.0
	if !c.IsAvailable(kind) {
		lasts = 1
	}
	c.Unavailable.WithLabelValues(kind, c.Queue).Set(lasts)
}

// log logs a beginning or a probe at once, and repeats at most every ten seconds; ends are limited in the same way,
// because a dependency may come and go.
func (c *Circuits) log(level slog.Level, message, kind string, attrs ...slog.Attr) {
	what := fmt.Sprintf("%s of %s, again %t", kind, c.Queue, level == slog.LevelInfo)
	attrs = append([]slog.Attr{slog.String("kind", kind), slog.String("queue", c.Queue)}, attrs...)
	c.Health.Say(c.Context, level, what, message, attrs...)
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
func findingOf(end outcome.Outcome, err error) finding {
	if unavailable, ok := errors.AsType[*outcome.Unavailable](err); ok && end.OutageLimit > 0 {
		if unavailable.OfTarget {
			return foundThere // other jobs of the kind may find their targets available
		}
		return foundAway
	}
	switch {
	case errors.Is(err, outcome.ErrNotBegun):
		return foundNothing
	case end.Status == outbox.Pending && (end.KeepDue || end.Code != ""): // interrupted, cancelled, at its deadline
		return foundNothing
	case end.Code == codes.Timeout, end.Code == codes.UndecodablePayload, end.Code == codes.UnreadablePayload:
		return foundNothing
	}
	return foundThere
}
