package reaper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	maxKinds    = 100 // of kinds with a gauge each; the same limit applies to queues
	depthShare  = 50  // a sample may take one part in so many of the time
	sampleTurn  = depthTimeout + statementTimeout + 10*time.Second
	seenOfLate  = 150 * time.Second // a dispatcher not seen for longer does not count
	sampleChore = "sample"
	forgetAfter = 30 * time.Minute // also the time that PosthasteNoReaper waits
)

// sample is what one reaper counts and all show. EndSample stores it in this form.
type sample struct {
	Depth  []sqlgen.SampleDepthRow
	Server struct {
		HorizonAgeSeconds                 float64
		HorizonAgeTransactions, DaysAhead int64
	}
	Schema int64 // the latest migration
	Sinks  []struct {
		Name  string
		Owned bool
	}
}

// A sampler publishes the depth of the queues. Only one goroutine may use it.
type sampler struct {
	chores   chores
	interval time.Duration
	gauges   depthGauges
}

// sample counts the waiting jobs, or shows another reaper's count. Counting reads the whole table, so only one of all
// processes does it, and the longer a count takes, the longer the pause before the next.
//
// The database decides whose turn it is, in the row of the chore:
//
//	A   takes the turn, free_at = +45 s    counts, at most 35 s      ends it: found, free_at = +20 s
//	B                  the turn is taken: shows what was found                     takes the next turn
//
// Two reapers that look at once want the same row: the second waits until the first has committed, sees the row as it
// is then, and takes nothing. If A dies, its turn is over after 45 s. The same happens if A hangs; when A then wakes
// and stores its count, the store is refused, because free_at is B's. So an older count never overwrites a newer one.
//
// A shows its count at once, and B at its next look: half a minute later, or a minute if both look at the same time.
func (s *sampler) sample(ctx context.Context) (time.Duration, error) {
	turn, err := s.takeTurn(ctx)
	if err == nil && turn.Turn.Valid {
		err = s.count(ctx, turn.Turn)
	} else if err == nil && turn.Found != nil { // otherwise the first turn has not ended yet
		err = s.show(turn.Found, time.Duration(turn.AgeSeconds*float64(time.Second)))
	}
	if err != nil {
		s.gauges.forget()
		if isTimeout(err) { // an early retry would spend the time that is to be saved
			_ = backoff.Sleep(ctx, backoff.Jitter(s.interval))
		}
		return 0, fmt.Errorf("sample the depth: %w", err)
	}
	return backoff.Jitter(s.interval), nil
}

func (s *sampler) takeTurn(ctx context.Context) (turn sqlgen.TakeTurnRow, err error) {
	err = s.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		turn, err = q.TakeTurn(ctx, sampleChore, pgvalue.Interval(sampleTurn))
		return err
	})
	return turn, err
}

func (s *sampler) count(ctx context.Context, turn pgtype.Timestamptz) error {
	var depth []byte
	var took time.Duration
	err := s.chores.do(ctx, depthTimeout, func(ctx context.Context, q *sqlgen.Queries) error {
		sent := time.Now()
		rows, err := q.SampleDepth(ctx, pgvalue.Interval(seenOfLate), maxKinds)
		took = time.Since(sent)
		if err != nil {
			return err
		}
		depth, err = json.Marshal(rows)
		return err
	})
	if err != nil {
		return err
	}
	// Each process looks after three quarters of the interval at the earliest; one of them then finds the turn free.
	rest := max(s.interval*7/10, depthShare*took)
	var stored [][]byte
	err = s.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		stored, err = q.EndSample(ctx, sqlgen.EndSampleParams{
			Chore: sampleChore, Turn: turn,
			Rest: pgvalue.Interval(rest), Depth: depth,
		})
		return err
	})
	if err != nil || len(stored) == 0 {
		return err
	}
	return s.show(stored[0], 0)
}

func (s *sampler) show(stored []byte, age time.Duration) error {
	var found sample
	if err := json.Unmarshal(stored, &found); err != nil {
		return errors.Join(errors.New("another build has stored the sample in a form that this one does not read"), err)
	}
	s.gauges.set(found, time.Now().Add(-age))
	return nil
}

// depthGauges shows samples. A kind or queue that has vanished is shown as 0 once, so that its graph falls, and is then
// removed. A removed sink is not shown as 0, which would mean that nobody publishes to it.
type depthGauges struct {
	metrics       *metrics
	kinds, queues map[string]bool // shown; false: gone before the latest sample
	sinks         map[string]bool // shown
	taken         time.Time       // time of the shown sample; zero before the first one
}

// forget clears the gauges of a process if no sample has been available for longer than one takes to come. Otherwise
// the stale values of a process that is cut off would outweigh what the others see.
func (g *depthGauges) forget() {
	if !g.taken.IsZero() && time.Since(g.taken) > forgetAfter {
		g.set(sample{}, time.UnixMilli(0))
	}
}

func (g *depthGauges) set(s sample, taken time.Time) {
	m := g.metrics
	g.taken = taken
	kinds, queues := map[string]bool{}, map[string]bool{}
	var deadLetters, blocked int64
	var oldest, oldestBlocked float64
	for _, row := range s.Depth {
		if row.What == "queue" {
			queues[row.Name] = true
			m.setQueue(row)
			continue
		}
		kinds[row.Name] = true
		m.depth.WithLabelValues(row.Name).Set(float64(row.Waiting))
		m.unhandled.WithLabelValues(row.Name).Set(float64(row.Unhandled))
		deadLetters += row.DeadLetters
		blocked += row.Blocked
		oldestBlocked = max(oldestBlocked, row.OldestBlockedAgeSeconds)
		oldest = max(oldest, row.OldestDueAgeSeconds)
	}
	g.kinds = fade(g.kinds, kinds, m.depth, m.unhandled)
	g.queues = fade(g.queues, queues, m.queueDue, m.queueUnhandled, m.queueOldest, m.queuePaused)
	for name, there := range g.queues {
		if !there {
			m.queueLimit.DeletePartialMatch(prometheus.Labels{"queue": name})
		}
	}
	g.setSinks(s)
	m.deadLetters.Set(float64(deadLetters))
	m.oldestDue.Set(oldest)
	m.blocked.Set(float64(blocked))
	m.oldestBlocked.Set(oldestBlocked)
	m.horizonSeconds.Set(s.Server.HorizonAgeSeconds)
	m.horizonTransactions.Set(float64(s.Server.HorizonAgeTransactions))
	m.schema.Set(float64(s.Schema))
	m.daysAhead.Set(float64(s.Server.DaysAhead))
	m.sampled.Set(float64(taken.UnixMilli()) / 1000)
}

func (g *depthGauges) setSinks(s sample) {
	sinks := map[string]bool{}
	for _, sink := range s.Sinks {
		sinks[sink.Name] = true
		owned := 0.0
		if sink.Owned {
			owned = 1
		}
		g.metrics.sinkOwned.WithLabelValues(sink.Name).Set(owned)
		g.metrics.eventsLost.WithLabelValues(sink.Name) // starts at 0, because a rate ignores a first value
	}
	for name := range g.sinks {
		if !sinks[name] {
			g.metrics.sinkOwned.DeleteLabelValues(name)
		}
	}
	g.sinks = sinks
}

func (m *metrics) setQueue(row sqlgen.SampleDepthRow) {
	m.queueDue.WithLabelValues(row.Name).Set(float64(row.Due))
	m.queueUnhandled.WithLabelValues(row.Name).Set(float64(row.Unhandled))
	m.queueOldest.WithLabelValues(row.Name).Set(row.OldestDueAgeSeconds)
	paused := 0.0
	if row.Paused {
		paused = 1
	}
	m.queuePaused.WithLabelValues(row.Name).Set(paused)
	if row.MaxRunning != nil {
		m.queueLimit.WithLabelValues(row.Name, "max_running").Set(float64(*row.MaxRunning))
	} else {
		m.queueLimit.DeleteLabelValues(row.Name, "max_running")
	}
	if row.PerSecond != nil {
		m.queueLimit.WithLabelValues(row.Name, "rate").Set(*row.PerSecond)
	} else {
		m.queueLimit.DeleteLabelValues(row.Name, "rate")
	}
}

// fade sets the gauges of names that are no longer shown to 0, or the next time removes them. It returns the names that
// are shown.
func fade(before, now map[string]bool, gauges ...*prometheus.GaugeVec) map[string]bool {
	for name, there := range before {
		if now[name] {
			continue
		}
		if there {
			now[name] = false
		}
		for _, g := range gauges {
			if there {
				g.WithLabelValues(name).Set(0)
			} else {
				g.DeleteLabelValues(name)
			}
		}
	}
	return now
}
