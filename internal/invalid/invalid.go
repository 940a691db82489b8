// Package invalid makes the errors with which packages other than outbox refuse arguments.
package invalid

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Field returns an error about a field. The reason follows the field's name, as in "is 0, want at least 1".
func Field(field, format string, args ...any) error {
	return &outbox.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
