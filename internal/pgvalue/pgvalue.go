// Package pgvalue converts Go values for Postgres: ids, times and text, as all our statements pass them.
package pgvalue

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// UUID converts an id. It is never NULL.
func UUID[ID ~[16]byte](id ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// UUIDOrNull converts an id, and the zero id to NULL.
func UUIDOrNull[ID ~[16]byte](id ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != ID{}} }

// Interval converts d, to the microsecond. Zero is an interval of zero, not NULL.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// IntervalOrNull converts d, and zero to NULL.
func IntervalOrNull(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d != 0}
}

// From converts a lower bound. The zero time becomes minus infinity: no bound.
func From(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// TimeOrNull converts t, to the microsecond, and the zero time to NULL.
func TimeOrNull(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// Seconds returns n seconds to the microsecond, as intervals are stored: 8.2 as a float64 is a little less than that.
// If n is beyond a Duration, it returns the longest or the shortest one.
func Seconds(n float64) time.Duration {
	switch most := time.Duration(math.MaxInt64).Seconds(); {
	case n >= most:
		return math.MaxInt64
	case n <= -most:
		return math.MinInt64
	}
	return time.Duration(math.Round(n*1e6)) * time.Microsecond
}

// OrZero returns *p, or the zero value if p is nil, for NULL.
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
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days)*24*time.Hour + time.Duration(
		i.Months)*30*24*time.Hour
}

// Durations converts each interval as [Duration] does.
func Durations(intervals []pgtype.Interval) (durations []time.Duration) {
	for _, i := range intervals {
		durations = append(durations, Duration(i))
	}
	return durations
}

// Text makes text from outside fit for a text column, so that an odd byte cannot make the database refuse the statement
// that stores it. It cuts a longer text to limit bytes and adds an ellipsis. The replacement of a bad byte is longer
// than the byte, so the text is cut again.
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

// ASCII escapes s for a database whose encoding is not UTF-8, which refuses characters that its encoding lacks. It
// escapes non-ASCII characters as Go does, such as \u2603. The result is at most limit bytes long.
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
