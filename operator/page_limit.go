package operator

import (
	"cmp"

	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// These limit the page of a list, unless its documentation states otherwise.
const (
	DefaultLimit = 50
	MaxLimit     = 200
)

// pageLimit returns how many rows the page of a list has, for the limit that its caller asks for; 0 means DefaultLimit.
// It refuses more than MaxLimit rather than to return less: a caller that takes a page shorter than its limit for the
// last one would miss the rest.
func pageLimit(field string, n int) (int32, error) { return limited(field, n, DefaultLimit, MaxLimit) }

// limited returns what [pageLimit] does, for a list with limits of its own.
func limited(field string, n, otherwise, most int) (int32, error) {
	if n < 0 || n > most {
		return 0, invalid.Field(field, "is %d, want 1 to %d, or 0 for %d", n, most, otherwise)
	}
	return int32(cmp.Or(n, otherwise)), nil
}
