package console

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// span is a part of a job's life: an attempt, or a wait before one.
type span struct {
	attempt int // 0 for a wait
	from    time.Time
	took    time.Duration
	class   string // "wait", "run", "failed", "lost", "ok"
	what    string // in words: the error, or what it waits for
	open    bool   // it is not over
}

// timeline returns a job's life in consecutive spans, none of them negative. Attempts without a record, such as those
// beyond the newest hundred, are part of a wait.
func timeline(j operator.Job, now time.Time) (spans []span) {
	at := j.CreatedAt
	wait := func(until time.Time, what string) {
		if until.After(at) {
			spans = append(spans, span{from: at, took: until.Sub(at), class: "wait", what: what})
			at = until
		}
	}
	run := func(attempt int, from, to time.Time, class, what string, open bool) {
		wait(from, "waited")
		to = latest(to, at)
		spans = append(spans, span{attempt: attempt, from: at, took: to.Sub(at), class: class, what: what, open: open})
		at = to
	}
	failed := slices.Clone(j.Attempts)
	slices.Reverse(failed)
	for _, a := range failed {
		class := "failed"
		if a.ErrorCode == "lease_lost" {
			class = "lost"
		}
		run(a.Attempt, a.StartedAt, a.FinishedAt, class, a.ErrorCode, false)
	}
	latestOfAll := len(failed) == 0 ||
		!slices.ContainsFunc(failed, func(a operator.Attempt) bool { return a.StartedAt.Equal(j.StartedAt) })
	switch {
	case j.Status == outbox.Running:
		run(j.Attempt, j.StartedAt, now, "run", "running", true)
	case j.Status.Closed() && !j.StartedAt.IsZero() && latestOfAll:
		class := "lost"
		if j.Status == outbox.Succeeded {
			class = "ok"
		}
		run(j.Attempt, j.StartedAt, j.FinishedAt, class, string(j.Status), false)
	case j.Status.Closed():
		wait(j.FinishedAt, string(j.Status))
	case j.Status == outbox.Failed || j.Status == outbox.Dead:
		spans = append(spans, span{
			from: at, took: max(now.Sub(at), 0), class: "wait", what: "needs a decision",
			open: true,
		})
	default:
		spans = append(spans, span{
			from: at, took: max(now.Sub(at), 0), class: "wait", what: string(j.Status),
			open: true,
		})
	}
	return spans
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// bar is a span in the picture, which is a thousand wide.
type bar struct {
	span
	x, width string
}

// bars draws spans by the root of their lengths, so that an attempt of a second remains visible next to a wait of a
// day.
func bars(spans []span) (drawn []bar) {
	const gap = 2.0
	weights, sum := make([]float64, len(spans)), 0.0
	for i, s := range spans {
		weights[i] = math.Pow(s.took.Seconds()+0.001, 0.35)
		if s.class == "wait" {
			weights[i] *= 0.6
		}
		sum += weights[i]
	}
	x, room := 0.0, 1000-gap*float64(max(len(spans)-1, 0))
	for i, s := range spans {
		width := max(room*weights[i]/sum, 1)
		drawn = append(drawn, bar{s, decimal(x), decimal(width)})
		x += width + gap
	}
	return drawn
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }
