package operator

import "time"

var (
	firstInstant = time.Date(0, time.January, 1, 0, 0, 0, 0, time.UTC)
	lastInstant  = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)
)

// Presentable returns t in UTC, or the first or last instant of the years 0 to 9999 if it lies outside. RFC 3339, and
// with it JSON, has no other years, but SQL stores them, and one such row must not keep a whole list from being shown.
// Zero stays zero.
func Presentable(t time.Time) time.Time {
	switch t = t.UTC(); {
	case t.Before(firstInstant):
		return firstInstant
	case t.After(lastInstant):
		return lastInstant
	}
	return t
}
