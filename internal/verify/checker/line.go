package checker

import (
	"fmt"
	"iter"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Life is what the moves of an ordered job show. Each time is that of the first such move, and zero if there was none.
type Life struct {
	Made, Claimed, Closed time.Time

	Retries []Span // from each failure to the next claim, without lapsed leases
}

// Lives reads the lives of jobs from their moves, which come job by job.
func Lives(moves iter.Seq2[Move, error]) (map[string]*Life, error) {
	lives := map[string]*Life{}
	var last Move
	var failed time.Time
	for m, err := range moves {
		if err != nil {
			return nil, err
		}
		if m.Job != last.Job {
			last, failed = Move{}, time.Time{}
			lives[m.Job] = &Life{Made: m.At}
		}
		life := lives[m.Job]
		switch {
		case m.From == outbox.Running && m.To == outbox.Retrying && m.LostLeases == last.LostLeases:
			failed = m.At
		case m.To == outbox.Running && m.From != outbox.Running:
			if life.Claimed.IsZero() {
				life.Claimed = m.At
			}
			if !failed.IsZero() {
				life.Retries, failed = append(life.Retries, Span{From: failed, Until: m.At, What: m.Job}), time.Time{}
			}
		case m.To.Closed() && life.Closed.IsZero():
			life.Closed = m.At
		}
		last = m
	}
	return lives, nil
}

// Line checks the jobs of one line, in their order, against their lives: no job may be claimed before the job before it
// was closed, however often that one is retried. It reports each job that was, and the retries for which the next job,
// stored by then, had to wait: if there were none, no retry could have been overtaken.
func Line(jobs []string, lives map[string]*Life) (overtaken []string, held []Span) {
	for i := range len(jobs) - 1 {
		first, next := lives[jobs[i]], lives[jobs[i+1]]
		if first == nil || next == nil {
			overtaken = append(overtaken, fmt.Sprintf("%s or %s has no moves", jobs[i], jobs[i+1]))
			continue
		}
		if !next.Claimed.IsZero() && (first.Closed.IsZero() || !first.Closed.Before(next.Claimed)) {
			overtaken = append(overtaken, fmt.Sprintf("%s was claimed at %s, %s before it was closed at %s", jobs[i+1],
				clock(next.Claimed), jobs[i], clock(first.Closed)))
		}
		for _, retry := range first.Retries {
			if next.Made.Before(retry.Until) {
				held = append(held, retry)
			}
		}
	}
	return overtaken, held
}
