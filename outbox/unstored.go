package outbox

import "fmt"

// NotStoredError says that a method was called that works on a job's row, for a
// job that has none: one of package memory.
type NotStoredError struct {
	ID   ID
	Kind string
	Act  string // "complete", "guard"
}

func (e *NotStoredError) Error() string {
	return fmt.Sprintf("%s job %s: a job of kind %s in memory has no row in the database", e.Act, e.ID, e.Kind)
}

// stored refuses what needs a row. Epochs of stored jobs are above 0 as soon as
// they are claimed, by a constraint.
func (c *Claimed) stored(act string) error {
	if c.Epoch > 0 {
		return nil
	}
	return &NotStoredError{ID: c.ID, Kind: c.Kind, Act: act}
}
