package checker

import (
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Slots describes how the slots of one key were used.
type Slots struct {
	// Free is when a slot was free, a job was blocked, and no pending job could take the slot: a process had to promote
	// one. Slots are assumed to be filled in the order in which they became free, so that no span is too long if there
	// are several.
	Free []Span
	// Unclaimed is when jobs were blocked or pending: each span lasts from a claim of the key, or from the arrival of
	// the jobs, to the next claim.
	Unclaimed []Span
	Promoted  int // jobs that were blocked and became pending
}

// ReadSlots reads how a key was used from the moves of all its jobs, in the order of their times. It leaves out spans
// that have not ended: [Replay] reports jobs that are open at the end.
func ReadSlots(limit int, moves []Move) (s Slots) {
	in := map[outbox.Status]int{}
	var free []time.Time // since when each slot waits for a promotion, the oldest first
	var unclaimed time.Time
	for _, m := range moves {
		if m.From != "" {
			in[m.From]--
		}
		in[m.To]++
		if m.From == outbox.Blocked && m.To == outbox.Pending {
			s.Promoted++
		}
		wanted := max(min(limit-in[outbox.Running]-in[outbox.Pending], in[outbox.Blocked]), 0)
		for len(free) < wanted {
			free = append(free, m.At)
		}
		for ; len(free) > wanted; free = free[1:] {
			s.Free = append(s.Free, Span{From: free[0], Until: m.At})
		}
		waiting := in[outbox.Blocked]+in[outbox.Pending] > 0
		claimed := m.From != outbox.Running && m.To == outbox.Running
		if (claimed || !waiting) && !unclaimed.IsZero() {
			s.Unclaimed, unclaimed = append(s.Unclaimed, Span{From: unclaimed, Until: m.At}), time.Time{}
		}
		if waiting && unclaimed.IsZero() {
			unclaimed = m.At
		}
	}
	return s
}
