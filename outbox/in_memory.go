package outbox

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// requireRow returns an error for a job that has no row. A constraint makes the epoch of a stored job positive as soon
// as it is claimed.
func (c *Claimed) requireRow(act string) error {
	if c.Epoch > 0 {
		return nil
	}
	return fmt.Errorf("%s job %s of kind %s in memory: %w", act, c.ID, c.Kind, engine.ErrNotStored)
}
