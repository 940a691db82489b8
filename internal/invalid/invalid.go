// Package invalid makes the errors by which packages beside outbox refuse arguments.
package invalid

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Field says what is wrong with a field: the reason goes on after its name, as in
// "is 0, want at least 1".
func Field(field, format string, args ...any) error {
	return &outbox.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
