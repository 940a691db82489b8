package await

import (
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// ErrNotFound reports that there is no such job: its transaction did not commit (yet), or the history has trimmed it.
var ErrNotFound = engine.ErrNotFound

// ErrNoResult reports that a job succeeded without a result: its handler was not registered with
// dispatcher.HandleResult, or called Complete without one.
var ErrNoResult = engine.ErrNoResult

// JobError reports that a job ended without success, and how.
type JobError struct {
	ID      outbox.ID
	Status  outbox.Status // Failed and Dead can still be retried by a person
	Code    string        // of the latest failed attempt; "" for none
	Message string
}

func (e *JobError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("job %s is %s", e.ID, e.Status)
	}
	return fmt.Sprintf("job %s is %s: %s: %s", e.ID, e.Status, e.Code, e.Message)
}

// DecodeResult decodes the stored result of a job that succeeded. It returns [ErrNoResult] if there is none, and a
// [*protect.SealedError] if protect.OpenResult must open it first. If R is struct{}, a missing result is not an error.
func DecodeResult[R any](id outbox.ID, stored []byte) (R, error) {
	result, sealed, err := engine.DecodeResult[R](stored)
	switch {
	case sealed != nil:
		return result, &protect.SealedError{ID: id, ContentType: *sealed}
	case errors.Is(err, engine.ErrNoResult):
		return result, fmt.Errorf("job %s: %w", id, ErrNoResult)
	case err != nil:
		return result, fmt.Errorf("decode the result of job %s: %w", id, err)
	}
	return result, nil
}
