package await

import (
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// ErrNotFound says that there is no such job: its transaction did not commit (yet),
// or the history has trimmed it.
var ErrNotFound = engine.ErrNotFound

// ErrNoResult says that a job succeeded and left no result: its handler was not
// registered with dispatcher.HandleResult, or called Complete without one.
var ErrNoResult = engine.ErrNoResult

// JobError says that a job has ended otherwise than by success, and how.
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

// DecodeResult reads the stored result of a job that succeeded: [ErrNoResult] is that
// there is none, a [*protect.SealedError] that protect.OpenResult has to open it first. A job without
// a result may have none if R is struct{}.
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
