package outbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

func TestAJobWithoutARowCanNeitherBeCompletedNorGuarded(t *testing.T) {
	t.Parallel()
	job := &Claimed{ID: NewID(), Kind: "k"}
	for act, err := range map[string]error{"complete": job.Complete(t.Context(), nil), "guard": job.Guard(t.Context(), nil)} {
		if !errors.Is(err, engine.ErrNotStored) || !strings.HasPrefix(err.Error(), act+" job "+job.ID.String()+" of kind k") {
			t.Errorf("%s: got %v, want engine.ErrNotStored", act, err)
		}
	}
	if engine.InternalOf(job).Completed.Load() {
		t.Error("the job says that it is completed")
	}
}
