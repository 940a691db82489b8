package report

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// batch holds what one statement stores.
type batch struct {
	attempts  []*Reports
	revisions []int64 // of each attempt's record when it was read
	size      int
	params    sqlgen.RecordReportsParams
}

func newBatch(n int) *batch {
	return &batch{attempts: make([]*Reports, 0, n), revisions: make([]int64, 0, n)}
}

// add adds the attempt's reports, and reports whether there were any to store.
func (b *batch) add(a *Reports, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.record
	if r == nil || r.revision == r.stored {
		return false
	}
	age := pgtype.Interval{}
	if !r.progress.at.IsZero() {
		age = pgvalue.Interval(now.Sub(r.progress.at))
	}
	for i := range r.lines {
		r.lines[i].Age = microseconds(now.Sub(r.lines[i].at))
	}
	lines, steps := encodeList(r.lines), encodeList(r.steps)
	p := &b.params
	p.Ids = append(p.Ids, pgvalue.UUID(a.job.ID))
	p.Epochs = append(p.Epochs, a.job.Epoch)
	p.Starts = append(p.Starts, pgvalue.TimeOrNull(a.job.StartedAt))
	p.Revisions = append(p.Revisions, r.revision)
	p.Currents = append(p.Currents, r.progress.current)
	p.Totals = append(p.Totals, r.progress.total)
	p.Messages = append(p.Messages, r.progress.message)
	p.ProgressAges = append(p.ProgressAges, age)
	p.Checkpoints = append(p.Checkpoints, r.checkpoint.encoded)
	p.LogStarts = append(p.LogStarts, r.logStart)
	p.LogLines = append(p.LogLines, lines)
	p.Steps = append(p.Steps, steps)
	b.attempts = append(b.attempts, a)
	b.revisions = append(b.revisions, r.revision)
	b.size += len(lines) + len(steps) + len(r.checkpoint.encoded) + len(r.progress.message)
	return true
}

// encodeList returns the list as JSON, or "" if it is empty.
func encodeList[T logLine | stepResult](list []T) string {
	if len(list) == 0 {
		return ""
	}
	b, err := json.Marshal(list)
	if err != nil { // strings, numbers and bytes can always be encoded
		panic(err)
	}
	return string(b)
}
