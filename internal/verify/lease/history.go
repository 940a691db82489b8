package lease

import (
	"math"
	"slices"
	"sync"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// history records the operations of the clients and their results. Its clock counts calls and returns: if an operation
// returned before another was called, its number is lower, and the checker needs no more.
type history struct {
	jobs []outbox.ID

	mu      sync.Mutex
	clock   int64
	asked   int
	killed  int
	refused int
	asks    []*ask
	leases  []held
}

// ask is one statement, about one job or several.
type ask struct {
	client       int
	call, answer int64
	// quiet is when the statement had certainly ended: if its client was killed, when the backend was gone.
	quiet int64
	// about holds the operation on each job.
	about map[outbox.ID]operation
	spare int // of a claim: the room that was left
}

type operation struct {
	in  input
	out output
}

// held is a lease that a client was granted. All clients use all of them, forever: that makes them zombies.
type held struct {
	id      outbox.ID
	epoch   int64
	started pgtype.Timestamptz
	attempt int
	place   pgtype.TID
}

// begin counts an operation and returns it, or nil if there were enough.
func (h *history) begin(client, most int) *ask {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == most {
		return nil
	}
	h.asked++
	h.clock++
	a := &ask{
		client: client, call: h.clock, answer: math.MaxInt64, quiet: math.MaxInt64,
		about: map[outbox.ID]operation{},
	}
	h.asks = append(h.asks, a)
	return a
}

// end records the time of the response.
func (h *history) end(a *ask) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	a.answer, a.quiet = h.clock, h.clock
}

// endUnheard records that the client got no response, and that the statement has ended.
func (h *history) endUnheard(a *ask) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed++
	h.clock++
	a.quiet = h.clock
	for id, op := range a.about {
		a.about[id] = operation{op.in, output{unknown: true}}
	}
}

func (h *history) give(l held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases = append(h.leases, l)
}

// byJob returns the operations on each job, with what the checker must know of other statements that touched the job at
// the same time.
func (h *history) byJob() [][]porcupine.Operation {
	taken := map[*ask]int{} // the number of jobs that others may have changed during a claim
	for _, id := range h.jobs {
		asks, locking := h.about(id)
		for _, a := range asks {
			op := a.about[id]
			op.in.contended = slices.ContainsFunc(locking, a.overlaps)
			a.about[id] = op
			if op.in.contended {
				taken[a]++
			}
		}
	}
	var all [][]porcupine.Operation
	for _, id := range h.jobs {
		var events []porcupine.Operation
		asks, _ := h.about(id)
		for _, a := range asks {
			op := a.about[id]
			if op.in.verb == lock { // counted above; its result proves nothing
				continue
			}
			if op.in.verb == passBy && !op.in.reaper {
				// A claim skips a job that was changed between its snapshot and its lock, and such a job still takes
				// room: perhaps all that was left.
				op.in.contended = op.in.contended || taken[a] >= a.spare
			}
			events = append(events, porcupine.Operation{
				ClientId: a.client, Call: a.call, Return: a.answer,
				Input: op.in, Output: op.out,
			})
			if op.in.verb == extend && op.in.contended && op.out.unknown { // one or the other took effect, or neither
				events = append(events, porcupine.Operation{
					ClientId: a.client, Call: a.call, Return: a.answer,
					Input: input{verb: beside, epoch: op.in.epoch}, Output: op.out,
				})
			}
		}
		all = append(all, events)
	}
	return all
}

// about returns the statements that concern a job, and those that lock its row.
func (h *history) about(id outbox.ID) (asks, locking []*ask) {
	for _, a := range h.asks {
		if op, concerned := a.about[id]; concerned {
			asks = append(asks, a)
			if op.in.verb != read {
				locking = append(locking, a)
			}
		}
	}
	return asks, locking
}

// overlaps reports whether another statement ran at the same time: it may have had a row locked.
func (a *ask) overlaps(b *ask) bool { return a != b && b.call < a.quiet && a.call < b.quiet }
