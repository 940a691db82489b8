// Package pgvalue makes Go values fit for Postgres: ids, times and text, as every
// statement of ours passes them.
package pgvalue

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// UUID is an id, which is never NULL.
func UUID[ID ~[16]byte](id ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// Interval is d, to the microsecond. Zero is no time at all, not NULL.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// IntervalOrNull is d, and NULL for zero.
func IntervalOrNull(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d != 0}
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
