package dispatcher_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

var errBoom = errors.New("boom")

// durations draws from every order of magnitude.
func durations(most time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(1, max(1, int64(most)>>rapid.IntRange(0, 62).Draw(t, "magnitude"))).Draw(t, "duration"))
	})
}

var attempts = rapid.IntRange(1, math.MaxInt16)

// nominal is base·factor^n up to limit.
func nominal(base, limit time.Duration, factor, n int) float64 {
	return min(float64(base)*math.Pow(float64(factor), float64(n)), float64(limit))
}

func TestExponential(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := durations(math.MaxInt64).Draw(t, "limit")
		base := durations(limit).Draw(t, "base")
		attempt := attempts.Draw(t, "attempt")
		got := float64(dispatcher.Exponential(base, limit)(&outbox.Claimed{Attempt: attempt}, errBoom))
		want := nominal(base, limit, 2, attempt-1)
		if got < 0.75*want-1 || got > 1.25*want+1 {
			t.Errorf("Exponential(%s, %s) waits %s after attempt %d, want %s ± 25 %%",
				base, limit, time.Duration(got), attempt, time.Duration(want))
		}
	})
}

func TestExponentialSpreadsWhatFailedTogether(t *testing.T) {
	policy := dispatcher.Exponential(time.Minute, time.Hour)
	waits := map[time.Duration]bool{}
	for range 100 {
		waits[policy(&outbox.Claimed{Attempt: 3}, errBoom)] = true
	}
	if len(waits) < 90 {
		t.Errorf("different waits among 100 = %d, want almost all", len(waits))
	}
}

func TestDecorrelatedJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := durations(math.MaxInt64).Draw(t, "limit")
		base := durations(limit).Draw(t, "base")
		attempt := attempts.Draw(t, "attempt")
		got := dispatcher.DecorrelatedJitter(base, limit)(&outbox.Claimed{Attempt: attempt}, errBoom)
		most := nominal(base, limit, 3, attempt)
		if got < base || float64(got) > most+1 {
			t.Errorf("DecorrelatedJitter(%s, %s) waits %s after attempt %d, want %s to %s",
				base, limit, got, attempt, base, time.Duration(most))
		}
	})
}

func TestDelaysRepeatTheLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delays := rapid.SliceOfN(durations(24*time.Hour), 1, 10).Draw(t, "delays")
		attempt := attempts.Draw(t, "attempt")
		got := dispatcher.Delays(delays...)(&outbox.Claimed{Attempt: attempt}, errBoom)
		if want := delays[min(attempt, len(delays))-1]; got != want {
			t.Errorf("Delays(%v) waits %s after attempt %d, want %s", delays, got, attempt, want)
		}
	})
	if got := dispatcher.Delays()(&outbox.Claimed{Attempt: 4}, errBoom); got != 0 {
		t.Errorf("Delays() waits %s, want none", got)
	}
}
