package operator

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

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

// duration returns 0 for NULL, and the longest or shortest duration for intervals beyond those.
func duration(i pgtype.Interval) time.Duration {
	seconds := float64(i.Microseconds)/1e6 + float64(i.Days)*24*3600 + float64(i.Months)*30*24*3600
	switch limit := float64(math.MaxInt64 / int64(time.Second)); {
	case seconds > limit:
		return math.MaxInt64
	case seconds < -limit:
		return math.MinInt64
	}
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*24*time.Hour + time.Duration(i.Months)*30*24*time.Hour
}
