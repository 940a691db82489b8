package verify

import (
	"testing"
	"testing/synctest"
	"time"
)

// Only a fault of the job's own worker, or of the server, excuses a late end.
func TestWhatExcusesALateEnd(t *testing.T) {
	type hold struct {
		owner       string
		from, until int
	}
	const lease = 3 * time.Second
	for name, c := range map[string]struct {
		kind, target string
		from, until  int // of the fault
		held         *hold
		want         time.Duration // for a job that had to end at 10 and did at 20
	}{
		"nothing":                                {"", "", 0, 0, nil, 0},
		"its worker was killed":                  {"kill -9 worker", "w1", 11, 11, &hold{"w1", 9, 14}, lease},
		"its worker was killed just before":      {"kill -9 worker", "w1", 9, 9, &hold{"w1", 8, 12}, lease},
		"another was killed":                     {"kill -9 worker", "w2", 11, 11, &hold{"w1", 9, 14}, 0},
		"one of a longer name was killed":        {"kill -9 worker", "w", 11, 11, &hold{"w1", 9, 14}, 0},
		"its worker was killed when it was done": {"kill -9 worker", "w1", 15, 15, &hold{"w1", 9, 14}, 0},
		"its worker was killed too late":         {"kill -9 worker", "w1", 21, 21, &hold{"w1", 9, 30}, 0},
		"it was killed and let go long before":   {"kill -9 worker", "w1", 3, 3, &hold{"w1", 1, 6}, 0},
		"the server was away":                    {"restart Postgres -m immediate", "", 12, 14, nil, 5 * time.Second},
		"the server was away before":             {"restart Postgres -m immediate", "", 5, 8, nil, time.Second},
		"the server was away long before":        {"restart Postgres -m immediate", "", 1, 2, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
				r := &Run{Lease: lease}
				if c.kind != "" {
					time.Sleep(time.Until(at(c.from)))
					healed := r.Faults.Begin(c.kind, c.target)
					time.Sleep(time.Until(at(c.until)))
					healed()
				}
				var held []tenure
				if c.held != nil {
					held = []tenure{{span{at(c.held.from), at(c.held.until)}, c.held.owner + "-1f"}}
				}
				if got := r.excused(at(10), at(20), held); got != c.want {
					t.Errorf("excused %s, want %s", got, c.want)
				}
			})
		})
	}
}
