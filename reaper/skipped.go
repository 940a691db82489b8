package reaper

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// skipFor is how long the reaper leaves a job or a key alone after the database refused to change it. A trigger may
// accept tomorrow what it refuses today.
const skipFor = time.Minute

// skipped holds the names that are left alone, and until when. It is not safe for concurrent use.
type skipped[Name comparable] map[Name]time.Time

func (a skipped[Name]) add(name Name) { a[name] = time.Now().Add(skipFor) }

// forget drops the names that are no longer left alone at a time. A pass that gives the time of its beginning meets
// each refused name once, however long it takes.
func (a skipped[Name]) forget(at time.Time) {
	maps.DeleteFunc(a, func(_ Name, until time.Time) bool { return !at.Before(until) })
}

// names returns the names that are left alone at a time, or nil for none.
func (a skipped[Name]) names(at time.Time) []Name {
	a.forget(at)
	return slices.Collect(maps.Keys(a))
}

// refusals counts the items of a statement that the database refuses individually.
type refusals struct {
	refused, done int
	first         []any // the first refused item and the reason, as attributes of a log line
}

func (r *refusals) add(err error, what ...any) {
	if r.refused++; r.refused == 1 {
		r.first = append(what, slog.Any("err", err))
	}
}

// log writes one line, however many are refused: a trigger may refuse all of them.
func (r *refusals) log(ctx context.Context, log *slog.Logger, message string) {
	if r.refused > 0 {
		log.ErrorContext(ctx, message,
			append([]any{slog.Int("refused", r.refused), slog.Duration("again_in", skipFor)}, r.first...)...)
	}
}
