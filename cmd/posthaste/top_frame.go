package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// frame draws what was seen.
func (w *lookout) frame() string {
	var lines []string
	if w.err != nil { // shown where it is noticed; the rest is unchanged
		lines = append(lines, "cannot look: "+w.err.Error(), "")
	}
	if !w.latest.AsOf.IsZero() {
		lines = append(append(lines, w.head()...), "")
		lines = append(lines, w.queueLines()...)
		if kinds := w.kindLines(); len(kinds) > 0 {
			lines = append(append(lines, ""), kinds...)
		}
	}
	for i := range lines {
		lines[i] = oneLine(lines[i]) // a key or an error is others' text
	}
	return strings.Join(lines, "\n")
}

// fit cuts a frame to a screen; a width or height of 0 means no limit.
func fit(frame string, width, height int) string {
	lines := strings.Split(frame, "\n")
	if height > 0 && len(lines) > height {
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines", len(lines)-height+1))
	}
	for i := range lines {
		lines[i] = cut(lines[i], width)
	}
	return strings.Join(lines, "\n")
}

// cut keeps a line within the screen.
func cut(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(0, width-1)]) + "…"
}

// head returns the lines that concern all queues.
func (w *lookout) head() []string {
	v := w.latest
	about := ""
	if v.Estimated {
		about = "~"
	}
	counted, rates := "", w.rates.String()
	if v.cached {
		counted = " (when the API counted)"
	}
	if v.hidden {
		rates = onlyForAll
	}
	lines := []string{
		fmt.Sprintf("posthaste   %s%s   looked in %s", v.AsOf.Local().Format("2006-01-02 15:04:05"), counted,
			v.took.Round(time.Millisecond)),
		fmt.Sprintf("open        %s%d: %s", about, v.Jobs(openStatuses()...), statusWords(v.Overview)),
		fmt.Sprintf("oldest due  %s", v.oldestWords()),
		fmt.Sprintf("rates       %s", rates),
	}
	if len(v.Recent) > 0 {
		r := v.Recent[0]
		lines = append(lines,
			fmt.Sprintf("times       waited p50 %s p99 %s, ran p50 %s p99 %s; the last %d closed since %s, %d of them without success",
				brief(r.WaitP50), brief(r.WaitP99), brief(r.RunP50), brief(r.RunP99), r.Jobs,
				r.Since.Local().Format("15:04:05"), r.Unsuccessful))
	}
	return append(lines,
		fmt.Sprintf("dispatchers %s", v.workerWords()),
		fmt.Sprintf("dead        %d letters wait for a person", v.Jobs(outbox.Failed, outbox.Dead)))
}

// onlyForAll stands for what the API tells tokens of all tenants alone.
const onlyForAll = "not known (only tokens of all tenants may see it)"

func (s sight) oldestWords() string {
	at := s.OldestDue()
	switch {
	case !at.IsZero():
		return brief(s.AsOf.Sub(at))
	case s.hidden:
		return onlyForAll
	case s.NoOldest:
		return "not known (somebody holds a snapshot: posthaste doctor)"
	}
	return "none"
}

func (s sight) workerWords() string {
	if s.hidden {
		return onlyForAll
	}
	present, missing, polling := 0, 0, 0
	for _, worker := range s.workers {
		switch {
		case worker.Missing:
			missing++
		case !worker.Listening:
			present, polling = present+1, polling+1
		default:
			present++
		}
	}
	return fmt.Sprintf("%d present, %d of them not listening, %d missing", present, polling, missing)
}

func (r rates) String() string {
	if !r.known {
		return "…"
	}
	return fmt.Sprintf("%.1f enqueued a second, %.1f closed", r.enqueued, r.closed)
}

func statusWords(v operator.Overview) string {
	var words []string
	for _, s := range openStatuses() {
		if n := v.Jobs(s); n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, s))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "nothing to do")
}

// brief returns a duration with two or three digits.
func brief(d time.Duration) string {
	for _, unit := range []struct{ above, to time.Duration }{
		{24 * time.Hour, time.Hour},
		{time.Hour, time.Minute},
		{time.Minute, time.Second},
		{time.Second, 10 * time.Millisecond},
		{time.Millisecond, 10 * time.Microsecond},
	} {
		if d >= unit.above {
			return short(d.Round(unit.to))
		}
	}
	return d.Round(time.Microsecond).String()
}

// queueLines returns the lines of the queues, the busiest first.
func (w *lookout) queueLines() []string {
	queues := slices.Clone(w.latest.Queues)
	slices.SortStableFunc(queues, func(a, b operator.Queue) int { return cmp.Compare(total(b), total(a)) })
	lines := []string{fmt.Sprintf("%-24s %9s %9s %9s %9s %9s %10s", "QUEUE", "WAITING", "RUNNING", "RETRYING",
		"BLOCKED", "DEAD", "OLDEST DUE")}
	for _, q := range queues {
		jobs := q.Jobs
		oldest := "-"
		if !q.OldestDue.IsZero() {
			oldest = brief(w.latest.AsOf.Sub(q.OldestDue))
		}
		line := fmt.Sprintf("%-24s %9d %9d %9d %9d %9d %10s", q.Name, jobs[outbox.Pending]+jobs[outbox.Created],
			jobs[outbox.Running],
			jobs[outbox.Retrying], jobs[outbox.Blocked], jobs[outbox.Failed]+jobs[outbox.Dead], oldest)
		if !q.PausedSince.IsZero() {
			line += "  paused since " + q.PausedSince.Local().Format("2006-01-02 15:04:05")
		}
		lines = append(lines, line)
	}
	return lines
}

func total(q operator.Queue) (n int64) {
	for n1 := range maps.Values(q.Jobs) {
		n += n1
	}
	return n
}

// kindLines returns the lines of the kinds whose jobs closed recently.
func (w *lookout) kindLines() []string {
	if len(w.latest.Recent) < 2 {
		return nil
	}
	lines := []string{fmt.Sprintf("%-24s %9s %9s %9s %9s %9s %9s", "KIND", "CLOSED", "FAILED", "WAIT P50", "WAIT P99",
		"RUN P50", "RUN P99")}
	for _, r := range w.latest.Recent[1:] {
		lines = append(lines, fmt.Sprintf("%-24s %9d %9d %9s %9s %9s %9s", r.Kind, r.Jobs, r.Unsuccessful,
			brief(r.WaitP50), brief(r.WaitP99), brief(r.RunP50), brief(r.RunP99)))
	}
	return lines
}
