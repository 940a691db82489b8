// Package fault injects faults into the processes, the network and the server of a run. It has the schedule, which
// depends on the seed alone, the proxy that breaks connections, and the log of the injected faults.
package fault

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// Random returns a source of random numbers that depends only on the seed and the name of its use: the numbers that one
// part of a run draws do not change those of another part.
func Random(seed uint64, use string) *rand.Rand {
	var stream uint64 = 14695981039346656037 // FNV-1a
	for _, b := range []byte(use) {
		stream = (stream ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, stream))
}

// Beat describes a fault that is injected repeatedly.
type Beat struct {
	Kind    string
	Every   time.Duration // on average; each interval is between half of it and one and a half times it
	Targets int           // the number of targets to choose from; 0 if there is no choice
}

// Planned is a fault to be injected at a certain time.
type Planned struct {
	At     time.Duration // since the beginning of the faults
	Kind   string
	Target int // from 0
	Dice   float64
}

// Schedule plans the faults of a run, in the order of their times. The same seed
// gives the same plan.
func Schedule(seed uint64, lasts time.Duration, beats ...Beat) []Planned {
	var plan []Planned
	for _, b := range beats {
		random := Random(seed, "fault "+b.Kind)
		wait := func() time.Duration { return time.Duration((0.5 + random.Float64()) * float64(b.Every)) }
		for at := wait(); at < lasts; at += wait() {
			p := Planned{At: at, Kind: b.Kind, Dice: random.Float64()}
			if b.Targets > 0 {
				p.Target = random.IntN(b.Targets)
			}
			plan = append(plan, p)
		}
	}
	slices.SortStableFunc(plan, func(a, b Planned) int { return cmp.Compare(a.At, b.At) })
	return plan
}
