package memory

import (
	"context"
	"log/slog"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// recorder receives the reports of one attempt's handler while it runs.
type recorder struct {
	store  *store
	record *record
}

var _ engine.Recorder = (*recorder)(nil)

// note changes the record, unless the attempt is over: another may have begun.
func (r *recorder) note(change func(*record)) error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.record.reports != r {
		return outbox.ErrLeaseLost
	}
	change(r.record)
	return nil
}

func (r *recorder) Progress(current, total int64, message string) error {
	return r.note(func(record *record) { record.progress = Progress{current, total, message} })
}

func (r *recorder) Log(level slog.Level, message string) error {
	if err := r.note(func(*record) {}); err != nil {
		return err
	}
	r.store.log.LogAttrs(context.Background(), level, "job in memory said",
		slog.String("job_id", r.record.id.String()), slog.String("kind", r.record.route.kind),
		slog.String("line", message))
	return nil
}

// SaveCheckpoint keeps the checkpoint as long as the job.
func (r *recorder) SaveCheckpoint(_ context.Context, checkpoint []byte) error {
	return r.note(func(record *record) { record.checkpoint = checkpoint })
}

func (r *recorder) LoadCheckpoint(context.Context) (checkpoint []byte, err error) {
	err = r.note(func(record *record) { checkpoint = record.checkpoint })
	return checkpoint, err
}

// Flush does nothing: a job in memory cannot be completed, so there is nothing to store.
func (r *recorder) Flush(context.Context, engine.DB) error { return nil }
