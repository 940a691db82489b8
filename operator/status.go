package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ParseStatus parses a status like "pending". Its error lists all statuses.
func ParseStatus(s string) (outbox.Status, error) {
	all := engine.Statuses[string]()
	if slices.Contains(all, s) {
		return outbox.Status(s), nil
	}
	return "", fmt.Errorf("status %q is unknown, want one of %s", s, strings.Join(all, ", "))
}
