package outbox

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

func TestDoubling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(1, int64(engine.MaxDuration)).Draw(t, "limit"))
		first := time.Duration(rapid.Int64Range(int64(time.Microsecond), int64(engine.MaxDuration)).Draw(t, "first"))
		b := Exponential(first, limit)
		if err := b.validate(); err != nil {
			t.Fatal(err)
		}
		if last := b[len(b)-1]; last != limit {
			t.Errorf("Doubling(%s, %s) ends with %s", first, limit, last)
		}
		want := first
		for i, wait := range b {
			if wait != min(want, limit) {
				t.Fatalf("Doubling(%s, %s) waits %s after attempt %d, want %s", first, limit, wait, i+1, min(want, limit))
			}
			want *= 2
		}
	})
}

func TestDoublingOfOddTimes(t *testing.T) {
	for _, c := range []struct {
		first, limit time.Duration
		want         Backoff
	}{
		{0, time.Hour, Backoff{0}},
		{-1, time.Hour, Backoff{-1}}, // which Enqueue refuses
		{time.Second, 0, Backoff{-1}},
		{time.Hour, time.Minute, Backoff{time.Minute}},
		{time.Second, 8 * time.Second, Backoff{1e9, 2e9, 4e9, 8e9}},
		{time.Second, 7 * time.Second, Backoff{1e9, 2e9, 4e9, 7e9}},
	} {
		if got := Exponential(c.first, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("Doubling(%s, %s) = %v, want %v", c.first, c.limit, got, c.want)
		}
	}
}
