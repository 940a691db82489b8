package outbox

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// stored refuses what needs a row. Epochs of stored jobs are above 0 as soon as
// they are claimed, by a constraint.
func (c *Claimed) stored(act string) error {
	if c.Epoch > 0 {
		return nil
	}
	return fmt.Errorf("%s job %s of kind %s in memory: %w", act, c.ID, c.Kind, engine.ErrNotStored)
}
