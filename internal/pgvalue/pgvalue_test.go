package pgvalue

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"
)

// Postgres can store any text, and the text does not grow beyond its limit.
func TestText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := string(rapid.SliceOf(rapid.Byte()).Draw(t, "words"))
		words = strings.Repeat(words, rapid.IntRange(1, 50).Draw(t, "times"))
		limit := rapid.IntRange(1, 200).Draw(t, "limit")
		got := Text(words, limit)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("Text(%q, %d) = %q, which Postgres refuses", words, limit, got)
		}
		if len(got) > limit+len("…") {
			t.Fatalf("Text(%q, %d) has %d bytes", words, limit, len(got))
		}
		if utf8.ValidString(words) && !strings.ContainsRune(words, 0) && len(words) <= limit && got != words {
			t.Fatalf("Text(%q, %d) = %q, want it unchanged", words, limit, got)
		}
	})
}

func TestASCII(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"it's a \"quoted\"\nC:\\path": "it's a \"quoted\"\nC:\\path",
		"café ☃ 😀…":                   `caf\u00e9 \u2603 \U0001f600\u2026`,
		"bad \xff":                    `bad \ufffd`,
		"":                            "",
	} {
		if got := ASCII(text, 100); got != want {
			t.Errorf("ASCII(%q) = %q, want %q", text, got, want)
		}
	}
	if got := ASCII("ab☃", 7); got != "ab" {
		t.Errorf("cut to 7 bytes: %q, want no half of an escape", got)
	}
}

func TestIntervals(t *testing.T) {
	t.Parallel()
	if got := Interval(0); !got.Valid || got.Microseconds != 0 {
		t.Errorf("Interval(0) = %+v, want no time at all", got)
	}
	if got := IntervalOrNull(0); got.Valid {
		t.Errorf("IntervalOrNull(0) = %+v, want NULL", got)
	}
	for _, made := range []int64{Interval(-1500 * time.Millisecond).Microseconds, IntervalOrNull(-1500 * time.Millisecond).Microseconds} {
		if made != -1_500_000 {
			t.Errorf("-1.5s is %d µs", made)
		}
	}
}

func TestIntervalsBeyondDurationsAreTheLongest(t *testing.T) {
	for given, want := range map[pgtype.Interval]time.Duration{
		{}:                                 0,
		{Microseconds: 1_500_000, Days: 1}: 24*time.Hour + 1500*time.Millisecond,
		{Months: 1_200_000}:                math.MaxInt64,
		{Months: -1_200_000}:               math.MinInt64,
		// 'infinity', from PostgreSQL 17 on.
		{Microseconds: math.MaxInt64, Days: math.MaxInt32, Months: math.MaxInt32}: math.MaxInt64,
		{Microseconds: math.MaxInt64}: math.MaxInt64,
	} {
		if got := Duration(given); got != want {
			t.Errorf("%+v is %s, want %s", given, got, want)
		}
	}
}
