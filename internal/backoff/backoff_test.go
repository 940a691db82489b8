package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

func TestWaitsGrowFromMinToMaxAndSpread(t *testing.T) {
	tests := map[string]struct {
		retry    backoff.Backoff
		min, max time.Duration // what the fields promise
	}{
		"the zero value":            {backoff.Backoff{}, backoff.DefaultMin, backoff.DefaultMax},
		"own bounds":                {backoff.Backoff{Min: time.Millisecond, Max: time.Second}, time.Millisecond, time.Second},
		"a maximum below a minimum": {backoff.Backoff{Min: time.Minute, Max: time.Second}, time.Second, time.Second},
		"bounds of a nanosecond":    {backoff.Backoff{Min: 1, Max: 1}, 1, 1},
		"the longest maximum":       {backoff.Backoff{Max: 1<<63 - 1}, backoff.DefaultMin, 1<<63 - 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.retry.Next(); got > min(tt.max, tt.min*3/2) || got < min(tt.max/3, tt.min/2) {
				t.Errorf("first wait = %s, want %s ± 50 %%", got, tt.min)
			}
			for range 100 { // far beyond the cap: overflow would show
				tt.retry.Next()
			}
			shortest, longest := tt.max, time.Duration(0)
			for range 1000 {
				got := tt.retry.Next()
				shortest, longest = min(shortest, got), max(longest, got)
			}
			if longest > tt.max || shortest < tt.max/3-1 {
				t.Errorf("waits at the cap range from %s to %s, want within %s to %s", shortest, longest, tt.max/3, tt.max)
			}
			if tt.max > time.Microsecond && longest < shortest*5/2 {
				t.Errorf("waits at the cap range from %s to %s, want about a factor of three", shortest, longest)
			}
		})
	}
}

func TestResetMakesTheNextWaitShort(t *testing.T) {
	retry := backoff.Backoff{Min: time.Millisecond, Max: time.Hour}
	for range 30 {
		retry.Next()
	}
	retry.Reset()
	if got, want := retry.Next(), 3*time.Millisecond/2; got > want {
		t.Errorf("wait after a reset = %s, want at most %s", got, want)
	}
}

func TestWaitTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := backoff.Backoff{Min: time.Hour, Max: 24 * time.Hour}
		start := time.Now()
		if err := retry.Wait(t.Context()); err != nil {
			t.Fatalf("wait: %v", err)
		}
		if got := time.Since(start); got < time.Hour/2 || got > time.Hour*3/2 {
			t.Errorf("waited %s, want an hour ± 50 %%", got)
		}
	})
}

func TestWaitEndsWithItsContextAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := errors.New("asked to stop")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(asked) })

		start := time.Now()
		retry := backoff.Backoff{Min: time.Hour, Max: time.Hour}
		if err := retry.Wait(ctx); !errors.Is(err, asked) {
			t.Errorf("wait = %v, want %v", err, asked)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("waited %s, want a second", got)
		}
	})
}
