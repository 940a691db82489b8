// Package pgvalue makes Go values fit for Postgres: ids, times and text, as every
// statement of ours passes them.
package pgvalue

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// UUID is an id, which is never NULL.
func UUID[ID ~[16]byte](id ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// UUIDOrNull is an id, and NULL for the zero one.
func UUIDOrNull[ID ~[16]byte](id ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != ID{}} }

// Interval is d, to the microsecond. Zero is no time at all, not NULL.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// IntervalOrNull is d, and NULL for zero.
func IntervalOrNull(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d != 0}
}

// OrZero is *p, and the zero value for NULL.
func OrZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Duration converts an interval as Postgres compares intervals: a day has 24 hours and a month 30 days. NULL is zero.
// An interval that a Duration cannot hold is the longest Duration, or the shortest.
func Duration(i pgtype.Interval) time.Duration {
	seconds := float64(i.Microseconds)/1e6 + float64(i.Days)*24*3600 + float64(i.Months)*30*24*3600
	switch limit := float64(math.MaxInt64 / int64(time.Second)); {
	case seconds > limit:
		return math.MaxInt64
	case seconds < -limit:
		return math.MinInt64
	}
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*24*time.Hour + time.Duration(i.Months)*30*24*time.Hour
}

// Durations converts each interval as [Duration] does.
func Durations(intervals []pgtype.Interval) (durations []time.Duration) {
	for _, i := range intervals {
		durations = append(durations, Duration(i))
	}
	return durations
}

// Text makes what others wrote fit for a text column, so that an odd byte cannot make the
// database refuse the statement that stores it. Of a longer text limit bytes are kept, and
// an ellipsis says so. What replaces a bad byte is longer than it, so it is cut again.
func Text(s string, limit int) string {
	whole := s
	s = s[:min(len(s), limit)]
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	for len(s) > limit {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	if len(whole) > limit {
		s += "…"
	}
	return s
}

// ASCII is s for a database in another encoding than UTF-8, which refuses characters that
// its own lacks: what is not ASCII is escaped as in Go, such as \u2603. The result is at
// most limit bytes long.
func ASCII(s string, limit int) string {
	var b []byte
	for _, r := range s {
		next := strconv.AppendQuoteRuneToASCII(nil, r)
		if r < utf8.RuneSelf {
			next = []byte{'\'', byte(r), '\''}
		}
		if next = next[1 : len(next)-1]; len(b)+len(next) > limit {
			break
		}
		b = append(b, next...)
	}
	return string(b)
}
