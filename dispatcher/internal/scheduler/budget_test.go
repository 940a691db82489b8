package scheduler

import (
	"testing"
	"time"
)

// budgetSteps records costs one after the other and returns how long the last one delays the next.
func budgetSteps(costs ...time.Duration) time.Duration {
	var b budget
	now := time.Now()
	for _, cost := range costs {
		now = now.Add(time.Hour)
		b.spend(now, cost)
	}
	return b.after(now)
}

func TestBudget(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		costs []time.Duration
		want  time.Duration
	}{
		"nothing was done":                        {nil, 0},
		"what is free":                            {[]time.Duration{ms, 3 * ms, 2 * ms}, 0},
		"one that was held up":                    {[]time.Duration{ms, 500 * ms}, 0},
		"the first one":                           {[]time.Duration{500 * ms}, 0},
		"two in a row":                            {[]time.Duration{ms, 500 * ms, 80 * ms}, 40 * 80 * ms},
		"the lower of the last two":               {[]time.Duration{80 * ms, 500 * ms}, 40 * 80 * ms},
		"expensive, and free again":               {[]time.Duration{80 * ms, 80 * ms, ms}, 0},
		"a negative cost, quicker than expected":  {[]time.Duration{80 * ms, -5 * ms}, 0},
		"free, expensive and expensive once more": {[]time.Duration{-5 * ms, 80 * ms, 90 * ms}, 40 * 80 * ms},
	} {
		if got := budgetSteps(test.costs...); got != test.want {
			t.Errorf("%s: the next one waits %v, want %v", name, got, test.want)
		}
	}
}

// A statement that was cut off is not repeated at once; two in a row show that it is too much, unless the database was
// unreachable.
func TestBudgetOfWhatFails(t *testing.T) {
	now := time.Now()
	const took = 5 * time.Second
	for name, test := range map[string]struct {
		away []bool
		want time.Duration
	}{
		"one":                      {[]bool{false}, took},
		"two":                      {[]bool{false, false}, RestFactor * took},
		"in an outage":             {[]bool{true, true, true}, took},
		"two, and an outage after": {[]bool{false, true}, took},
	} {
		var b budget
		for _, away := range test.away {
			b.fail(now, took, away)
		}
		if got := b.after(now); got != test.want {
			t.Errorf("%s: the next one waits %v, want %v", name, got, test.want)
		}
		if b.allows(now) || !b.allows(now.Add(test.want)) {
			t.Errorf("%s: allowed now, or not when the time has come", name)
		}
	}
}

// If an answer takes long, or a job does, that does not make a statement expensive; a slow one that was slow by chance
// is forgotten.
func TestExpected(t *testing.T) {
	var e expected
	if e.of(1000) != 0 {
		t.Errorf("expects %v without having learned anything", e.of(1000))
	}
	e.learn(5*time.Millisecond, 3)
	e.learn(20*time.Millisecond, 1000)
	if got := e.of(1); got != 5*time.Millisecond {
		t.Errorf("a job is expected to take %v, want the answer's 5ms", got)
	}
	if got := e.of(2000); got != 40*time.Millisecond {
		t.Errorf("2000 jobs are expected to take %v, want 40ms", got)
	}
	for range 60 {
		e.lower(time.Millisecond, 1)
	}
	if got := e.of(1); got > 1100*time.Microsecond {
		t.Errorf("after many answers of 1ms %v is expected", got)
	}
	e.lower(time.Hour, 1)
	if got := e.of(1); got > 1100*time.Microsecond {
		t.Errorf("a statement that may have read more raised what is expected to %v", got)
	}
}
