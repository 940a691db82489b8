package reaper

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// asideFor is how long a job or a key is left alone that the database refuses to change. What a trigger refuses today
// it may take tomorrow.
const asideFor = time.Minute

// aside holds what is left alone, and until when. It is not safe for concurrent use.
type aside[Name comparable] map[Name]time.Time

func (a aside[Name]) add(name Name) { a[name] = time.Now().Add(asideFor) }

// forget forgets what is not to be left alone any more at a time. A pass that gives the time of its beginning meets
// what is refused once, however long it takes.
func (a aside[Name]) forget(at time.Time) {
	maps.DeleteFunc(a, func(_ Name, until time.Time) bool { return !at.Before(until) })
}

// names returns what is left alone at a time, nil for nothing.
func (a aside[Name]) names(at time.Time) []Name {
	a.forget(at)
	return slices.Collect(maps.Keys(a))
}

// refusals counts what the database refuses, each by itself, of what one statement was to do.
type refusals struct {
	refused, done int
	first         []any // what the first one was, and why, as attributes of a line
}

func (r *refusals) add(err error, what ...any) {
	if r.refused++; r.refused == 1 {
		r.first = append(what, slog.Any("err", err))
	}
}

// log writes one line, however many are refused: a trigger may refuse all there are.
func (r *refusals) log(ctx context.Context, log *slog.Logger, message string) {
	if r.refused > 0 {
		log.ErrorContext(ctx, message, append([]any{slog.Int("refused", r.refused), slog.Duration("again_in", asideFor)}, r.first...)...)
	}
}
