package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// SaveCheckpoint stores the handler's progress, so that the next attempt of the job can continue from there after a
// crash, a failure or an interruption. It replaces the previous checkpoint. Once it returns nil, the checkpoint
// survives whatever happens.
//
// The call is fenced: it returns [ErrLeaseLost] if the job no longer belongs to this attempt, and never touches another
// attempt's checkpoint. While the database is unavailable, SaveCheckpoint waits for it until ctx ends; after that, the
// checkpoint may or may not be stored. For a Claimed that a test made by hand, the checkpoint is discarded.
//
// A checkpoint that is not acceptable, such as one larger than 256 KiB as JSON, gets an [*InvalidError]. Several
// goroutines of the handler may call SaveCheckpoint; the last call counts.
func SaveCheckpoint[C any](ctx context.Context, job *Claimed, checkpoint C) error {
	encoded, err := json.Marshal(checkpoint)
	if err != nil {
		return invalid("checkpoint", "cannot be encoded as JSON: %v", err)
	}
	if !utf8.Valid(encoded) { // json.Marshal does not check the output of json.RawMessage and MarshalJSON
		return invalid("checkpoint", "is not valid UTF-8 as JSON")
	}
	if len(encoded) > engine.MaxCheckpointBytes {
		return invalid("checkpoint",
			"is %d bytes as JSON, want at most %d; store large data elsewhere and keep a reference", len(encoded),
			engine.MaxCheckpointBytes)
	}
	recorder := engine.InternalOf(job).Recorder
	if recorder == nil {
		return nil
	}
	if err := recorder.SaveCheckpoint(ctx, encoded); err != nil {
		return fmt.Errorf("save the checkpoint of job %s: %w", job.ID, err)
	}
	return nil
}

// LoadCheckpoint returns the job's newest checkpoint, whichever attempt saved it; found is false if there is none. It
// returns an error if JSON cannot decode the checkpoint into C, as may happen when an earlier version of the program
// saved it as another type.
func LoadCheckpoint[C any](ctx context.Context, job *Claimed) (checkpoint C, found bool, err error) {
	recorder := engine.InternalOf(job).Recorder
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
