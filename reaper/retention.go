package reaper

import (
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// rules map each queue, and "" for all others, to how long each status is kept.
type rules struct {
	statuses []string
	queues   []string
	keeps    []pgtype.Interval
}

func (c Config) rules(concerned func(outbox.Status) bool) (r rules) {
	add := func(status outbox.Status, queue string, keep time.Duration) {
		r.statuses, r.queues, r.keeps = append(r.statuses, string(status)), append(r.queues, queue), append(r.keeps,
			pgvalue.Interval(keep))
	}
	for _, status := range slices.DeleteFunc(engine.Statuses[outbox.Status](), func(s outbox.Status) bool {
		return !concerned(s)
	}) {
		add(status, "", c.retention(status))
		for _, queue := range slices.Sorted(maps.Keys(c.KeepByQueue)) {
			if keep, ok := c.KeepByQueue[queue][status]; ok {
				add(status, queue, keep)
			}
		}
	}
	return r
}

// shorter returns the retentions below the longest, each once. A retention of zero counts as shorter even if it is the
// longest, because a row that is not kept does not wait until its day is over.
func (r rules) shorter(longest time.Duration) (keeps []pgtype.Interval) {
	for _, keep := range r.keeps {
		if (longest == 0 || keep != pgvalue.Interval(longest)) && !slices.Contains(keeps, keep) {
			keeps = append(keeps, keep)
		}
	}
	return keeps
}
