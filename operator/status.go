package operator

import (
	"fmt"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ParseStatus reads a status as its String writes it, in lower case. Anything else is an error that
// lists them.
func ParseStatus(s string) (outbox.Status, error) {
	all := engine.Statuses[outbox.Status]()
	if slices.Contains(all, outbox.Status(s)) {
		return outbox.Status(s), nil
	}
	return "", fmt.Errorf("status %q is unknown, want one of %v", s, all)
}
