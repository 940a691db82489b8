package outbox

import (
	"errors"
	"testing"
)

func TestAJobWithoutARowCanNeitherBeCompletedNorGuarded(t *testing.T) {
	t.Parallel()
	job := &Claimed{ID: NewID(), Kind: "k"}
	for act, err := range map[string]error{"complete": job.Complete(t.Context(), nil), "guard": job.Guard(t.Context(), nil)} {
		if refused, ok := errors.AsType[*NotStoredError](err); !ok || *refused != (NotStoredError{ID: job.ID, Kind: "k", Act: act}) {
			t.Errorf("%s: got %v, want a NotStoredError", act, err)
		}
	}
	if job.Completed() {
		t.Error("the job says that it is completed")
	}
}
