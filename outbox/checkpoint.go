package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// SaveCheckpoint stores where the handler is, for the next attempt of the job to
// go on from there: after a crash, a failure, or an interruption. It replaces the
// checkpoint before. Once it returns nil, the checkpoint survives whatever
// happens.
//
// It is fenced: it returns [ErrLeaseLost] if the job is no longer this attempt's,
// and never touches the checkpoint of another. While the database is away it
// waits for it, until ctx ends; then the checkpoint may be stored, or not. In a
// Claimed that a test made by hand it is kept nowhere.
//
// A checkpoint that is not acceptable, one larger than 256 KiB as
// JSON among them, gets an [*InvalidError].
func SaveCheckpoint[C any](ctx context.Context, job *Claimed, checkpoint C) error {
	encoded, err := json.Marshal(checkpoint)
	if err != nil {
		return invalid("checkpoint", "cannot be encoded as JSON: %v", err)
	}
	if !utf8.Valid(encoded) { // a json.RawMessage or MarshalJSON is not checked for it
		return invalid("checkpoint", "is not valid UTF-8 as JSON")
	}
	if len(encoded) > engine.MaxCheckpointBytes {
		return invalid("checkpoint", "is %d bytes as JSON, want at most %d; store large data elsewhere and keep a reference", len(encoded), engine.MaxCheckpointBytes)
	}
	recorder := engine.Of(job).Recorder
	if recorder == nil {
		return nil
	}
	if err := recorder.SaveCheckpoint(ctx, encoded); err != nil {
		return fmt.Errorf("save the checkpoint of job %s: %w", job.ID, err)
	}
	return nil
}

// LoadCheckpoint returns the job's newest checkpoint, of whichever attempt; found
// is false if there is none. A checkpoint that was saved as another type, by an
// earlier version of the program, is an error if JSON cannot decode it into C.
func LoadCheckpoint[C any](ctx context.Context, job *Claimed) (checkpoint C, found bool, err error) {
	recorder := engine.Of(job).Recorder
	if recorder == nil {
		return checkpoint, false, nil
	}
	encoded, err := recorder.LoadCheckpoint(ctx)
	if err != nil {
		return checkpoint, false, fmt.Errorf("load the checkpoint of job %s: %w", job.ID, err)
	}
	if encoded == nil {
		return checkpoint, false, nil
	}
	if err := json.Unmarshal(encoded, &checkpoint); err != nil {
		var none C
		return none, false, fmt.Errorf("decode the checkpoint of job %s (%s) into %T: %w", job.ID, job.Kind, none, err)
	}
	return checkpoint, true, nil
}
