package reaper

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// asideFor is how long a job or a key is left alone that the database refuses to change. What a trigger refuses today
// it may take tomorrow.
const asideFor = time.Minute

// aside holds what is left alone, and until when. It is not safe for concurrent use.
type aside[Name comparable] map[Name]time.Time

func (a aside[Name]) add(name Name) { a[name] = time.Now().Add(asideFor) }

// names returns what is left alone at a time, and forgets the rest. A pass that gives the time of its beginning meets
// what is refused once, however long it takes.
func (a aside[Name]) names(at time.Time) (names []Name) {
	for name, until := range a {
		if at.Before(until) {
			names = append(names, name)
		} else {
			delete(a, name)
		}
	}
	return names
}

// refusal is what one statement on many jobs has come to: the first of them that is refused by itself, and why.
type refusal struct {
	job  pgtype.UUID
	err  error
	jobs int // that are refused
	done int // that are not
}

func (r *refusal) add(job pgtype.UUID, err error) {
	if r.jobs++; r.jobs == 1 {
		r.job, r.err = job, err
	}
}

// log writes one line, however many jobs are refused: a trigger may refuse all there are.
func (r *refusal) log(ctx context.Context, log *slog.Logger, message string) {
	if r.jobs > 0 {
		log.LogAttrs(ctx, slog.LevelError, message, slog.Int("jobs", r.jobs), slog.String("job_id", outbox.ID(r.job.Bytes).String()),
			slog.Duration("again_in", asideFor), slog.Any("err", r.err))
	}
}
