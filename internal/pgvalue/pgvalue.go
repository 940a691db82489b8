// Package pgvalue makes Go values fit for Postgres: ids, times and text, as every
// statement of ours passes them.
package pgvalue

import (
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
