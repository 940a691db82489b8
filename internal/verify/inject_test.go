package verify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// When a restart takes longer than the interval, the next ones do not follow at once: the server would hardly be up
// between them.
func TestASlowFaultDoesNotBringTheNextOneForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began, ended []time.Duration
		start := time.Now()
		plan := []fault.Planned{{At: time.Second, Kind: "slow"}, {At: 3 * time.Second, Kind: "slow"}, {At: 4 * time.Second, Kind: "slow"}}
		err := new(Run).Inject(t.Context(), plan, acts{"slow": func(context.Context, fault.Planned) error {
			began = append(began, time.Since(start))
			time.Sleep(10 * time.Second)
			ended = append(ended, time.Since(start))
			return nil
		}})
		if err != nil || len(began) != 3 {
			t.Fatalf("%d faults, %v, want 3", len(began), err)
		}
		for i, want := range []time.Duration{2 * time.Second, time.Second} {
			if got := began[i+1] - ended[i]; got != want {
				t.Errorf("fault %d came %s after the end of the one before, want %s", i+2, got, want)
			}
		}
	})
}

func TestFaultsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, heal := context.WithTimeout(t.Context(), 90*time.Second)
		defer heal()
		n := 0
		plan := fault.Schedule(1, time.Hour, fault.Beat{Kind: "a", Every: time.Second})
		if err := new(Run).Inject(ctx, plan, acts{"a": func(context.Context, fault.Planned) error { n++; return nil }}); err != nil || n < 50 {
			t.Errorf("%d faults in 90 seconds, %v", n, err)
		}
		boom := errors.New("boom")
		if err := new(Run).Inject(t.Context(), plan, acts{"a": func(context.Context, fault.Planned) error { return boom }}); !errors.Is(err, boom) {
			t.Errorf("a fault that cannot be injected is told as %v", err)
		}
	})
}

// Production goes on until the function that injects the faults has returned or, if it never returns, until there were
// enough of them.
func TestProductionGoesOnUntilThereWereEnoughFaults(t *testing.T) {
	r := &Run{}
	over, on := make(chan struct{}), make(chan struct{})
	close(over)
	endless := &production{flow: &flow{least: map[string]int{"kill": 2, "restart": 1}}, run: r}
	ending := &production{flow: &flow{}, run: r}
	expect := func(when string, p *production, injected <-chan struct{}, want bool) {
		t.Helper()
		if got := p.enough(injected); got != want {
			t.Errorf("%s: enough = %t, want %t", when, got, want)
		}
	}
	expect("at first", endless, on, false)
	r.Faults.Begin("kill", "")()
	r.Faults.Begin("kill", "")()
	expect("without a restart", endless, on, false)
	r.Faults.Begin("restart", "")()
	expect("with all", endless, on, true)
	expect("faults that end by themselves, before", ending, on, false)
	expect("faults that end by themselves, then", ending, over, true)
}
