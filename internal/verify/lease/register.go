package lease

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/posthaste-dev/posthaste/outbox"
)

const maxAttempts = 3 // of every job

// verb is what an operation does to one job. A statement about several jobs is several operations at the same time.
type verb string

const (
	claim   verb = "claim"   // got the job
	settle  verb = "settle"  // as succeeded, retrying, failed, or pending: given back
	extend  verb = "extend"  //
	beside  verb = "beside"  // an extension that may have found the row locked, if its client got no response
	expire  verb = "expire"  // a reaper's pass that took the lease away
	passBy  verb = "pass by" // a claim or a reaper's pass that had room and did not take the job
	lock    verb = "lock"    // a claim without room left, which may have locked the row: it proves nothing else
	elapse  verb = "elapse"  // time goes by: the lease lapses, or the job becomes due
	retry   verb = "retry"   // by an operator
	dismiss verb = "dismiss" // by an operator
	read    verb = "read"
)

// input is an operation as it was requested.
type input struct {
	verb  verb
	epoch int64         // of settle and extend
	to    outbox.Status // of settle
	// Another client may have had the row locked meanwhile, so that SKIP LOCKED skipped it.
	contended bool
	reaper    bool // of pass by: a reaper's pass, not a claim
}

// output is the result of an operation, as far as the client got it.
type output struct {
	unknown bool // the client was killed, and got no response
	done    bool // the operation took effect
	lost    bool // of extend: the lease is lost, and not only the row locked
	status  outbox.Status
	epoch   int64
	attempt int
	lapsed  bool // of read
}

// state is the lease of one job, as it would be in memory.
type state struct {
	status  outbox.Status
	epoch   int64
	attempt int
	lost    int
	lapsed  bool
	beside  bool // an extension found the row locked: a reaper that sees the extension passes the job by
	due     bool // certainly due; after some lost leases a job waits for seconds
}

var register = porcupine.Model{
	Init: func() any { return state{status: outbox.Pending, due: true} },
	Step: func(s, in, out any) (bool, any) {
		legal, next := s.(state).step(in.(input), out.(output))
		return legal, next
	},
	DescribeOperation: describe,
}

// step reports whether the operation can have this output in this state, and returns the next state. An operation with
// an unknown output takes effect here if it can. It need not have taken effect, which is covered, too: such an
// operation has no end, so it may come after everything else.
func (s state) step(in input, out output) (bool, state) {
	next, possible := s.apply(in)
	if out.unknown {
		return true, next
	}
	switch in.verb {
	case claim, expire:
		return possible && out.attempt == next.attempt &&
			(in.verb == expire || out.epoch == next.epoch) && out.status == next.status, next
	case settle:
		return out.done == possible, next
	case extend:
		if !out.done && !out.lost {
			if s.holds(in.epoch) {
				s.beside = true
			}
			return in.contended, s
		}
		return out.done == possible, next
	case passBy:
		missed := s.waiting() && s.due && !in.reaper || s.status == outbox.Running && s.lapsed && !s.beside && in.reaper
		return in.contended || !missed, s
	case elapse:
		return out.done == possible && (!possible || out.status == s.status && out.epoch == s.epoch), next
	case retry:
		if out.status == "" { // not found among the open jobs
			return s.status.Closed(), s
		}
		return out.status == s.status && out.done == possible, next
	case dismiss:
		return out.done == possible, next
	default: // read
		return out.status == s.status && out.epoch == s.epoch && out.attempt == s.attempt && out.lapsed == s.lapsed, s
	}
}

// apply applies the operation if that is possible.
func (s state) apply(in input) (next state, possible bool) {
	next = s
	holds := s.holds(in.epoch)
	letter := s.status == outbox.Failed || s.status == outbox.Dead
	switch in.verb {
	case claim:
		if possible = s.waiting(); possible {
			next.status, next.epoch, next.attempt, next.lapsed = outbox.Running, s.epoch+1, s.attempt+1, false
			next.beside = false
		}
	case settle:
		if possible = holds; possible {
			next = s.settled(in.to)
		}
	case extend:
		if possible = holds; possible {
			next.lapsed = false
		}
	case beside:
		if possible = holds; possible {
			next.beside = true
		}
	case expire: // also if an extension has found the row locked: by this reaper
		if possible = s.status == outbox.Running && s.lapsed; possible {
			next = s.expired()
		}
	case elapse:
		if possible = !s.status.Closed(); possible {
			next.lapsed, next.beside, next.due = s.status == outbox.Running, false, true
		}
	case retry:
		if possible = s.waiting() || letter; possible {
			next.epoch, next.due = s.epoch+1, true
			if letter {
				next.status, next.attempt, next.lost = outbox.Pending, 0, 0
			}
		}
	case dismiss:
		if possible = letter; possible {
			next.status, next.epoch = outbox.Dismissed, s.epoch+1
		}
	}
	return next, possible
}

func (s state) holds(epoch int64) bool { return s.status == outbox.Running && s.epoch == epoch }

func (s state) waiting() bool { return s.status == outbox.Pending || s.status == outbox.Retrying }

func (s state) settled(to outbox.Status) state {
	s.status, s.lapsed = to, false
	if to != outbox.Succeeded {
		s.epoch++
		s.due = true
	}
	if to == outbox.Pending {
		s.attempt--
	}
	return s
}

func (s state) expired() state {
	s.due = s.due && s.lost == 0 // the first time the job keeps its place in the queue
	s.status, s.epoch, s.lost, s.lapsed = outbox.Retrying, s.epoch+1, s.lost+1, false
	if s.attempt >= maxAttempts || s.lost >= 2*maxAttempts+10 {
		s.status = outbox.Dead
	}
	return s
}

func describe(in, out any) string {
	i, o := in.(input), out.(output)
	text := string(i.verb)
	switch i.verb {
	case settle:
		text += fmt.Sprintf(" %s with epoch %d", i.to, i.epoch)
	case extend:
		text += fmt.Sprintf(" epoch %d", i.epoch)
	}
	switch {
	case o.unknown:
		return text + " → killed"
	case i.verb == settle || i.verb == extend:
		return fmt.Sprintf("%s → %t", text, o.done)
	case i.verb == passBy:
		return fmt.Sprintf("%s (reaper: %t, contended: %t)", text, i.reaper, i.contended)
	}
	return fmt.Sprintf("%s → done %t, %s, epoch %d, attempt %d", text, o.done, o.status, o.epoch, o.attempt)
}
