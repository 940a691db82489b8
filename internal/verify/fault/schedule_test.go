package fault

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var beats = []Beat{{Kind: "kill", Every: time.Second, Targets: 3}, {Kind: "restart", Every: 5 * time.Second}}

func TestTheSeedDecidesTheSchedule(t *testing.T) {
	plan := Schedule(7, time.Minute, beats...)
	if diff := cmp.Diff(plan, Schedule(7, time.Minute, beats...)); diff != "" {
		t.Errorf("the same seed gives another schedule:\n%s", diff)
	}
	if cmp.Equal(plan, Schedule(8, time.Minute, beats...)) {
		t.Error("another seed gives the same schedule")
	}
	counts, targets := map[string]int{}, map[int]bool{}
	for i, p := range plan {
		counts[p.Kind]++
		if p.Kind == "kill" {
			targets[p.Target] = true
		}
		if i > 0 && p.At < plan[i-1].At || p.At >= time.Minute || p.Target >= 3 {
			t.Errorf("fault %d of the plan is %+v, after %+v", i, p, plan[max(i-1, 0)])
		}
	}
	if counts["kill"] < 45 || counts["kill"] > 80 || counts["restart"] < 8 || counts["restart"] > 18 || len(targets) != 3 {
		t.Errorf("the plan has %v against targets %v", counts, targets)
	}
}

// The numbers that one kind of fault draws must not change those of another kind.
func TestKindsDoNotDisturbEachOther(t *testing.T) {
	var kills []Planned
	for _, p := range Schedule(7, time.Minute, beats...) {
		if p.Kind == "kill" {
			kills = append(kills, p)
		}
	}
	if diff := cmp.Diff(Schedule(7, time.Minute, beats[0]), kills); diff != "" {
		t.Errorf("kills alone, and beside restarts:\n%s", diff)
	}
}
