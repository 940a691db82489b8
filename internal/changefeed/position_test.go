package changefeed

import (
	"testing"
	"time"
)

// A position has exactly one spelling, and the database accepts every position that parses: its time is one that
// Postgres has.
func FuzzParsePosition(f *testing.F) {
	for _, p := range []Position{{}, {horizon: 1}, {horizon: 1 << 40, since: time.Unix(1800000000, 999)}, {horizon: 1<<64 - 1, since: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}, {horizon: 7, since: time.Unix(-1, 0)}} {
		f.Add(p.String())
	}
	for _, seed := range []string{"", "=", "AAAA_________AAGQwAAAAAAA", "AAAAAAAAAAEAAAAAAAAAAA\n", "AAAAAAAAAAEAAAAAAAAAAB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			return
		}
		if p.String() != text || p.IsZero() || p.since.Before(time.Unix(0, 0)) || p.since.Year() > 9999 {
			t.Errorf("%q is read as %+v, which is written %q", text, p, p.String())
		}
		for _, step := range []string{"1", "18446744073709551615"} {
			after, err := p.advance(step, "18446744073709551615", p.since.Add(time.Minute))
			if err == nil && (after.horizon < p.horizon || after.since.Before(p.since)) {
				t.Errorf("after %+v comes %+v", p, after)
			}
		}
	})
}
