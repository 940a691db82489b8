package checker

import (
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Slots is what became of the slots of one key.
type Slots struct {
	// Free is when a slot was free, a job blocked, and no pending one there to take
	// the slot: somebody had to promote one. The slot that was free first is taken to
	// be filled first, so that where several come and go no span is too long.
	Free []Span
	// Unclaimed is when jobs were blocked or pending, from one claim of the key, or
	// from when they came, to the next.
	Unclaimed []Span
	Promoted  int // jobs that were blocked and became pending
}

// ReadSlots reads how a key was used from the moves of all its jobs, in the order of
// their times. What is still going on at the end is left out: [Replay] tells of jobs
// that are open then.
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
