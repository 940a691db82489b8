package checker

import (
	"fmt"
	"iter"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Move is a change of a job as the database's trigger recorded it. From is empty if the job was created. A move from
// running to running extends a lease.
type Move struct {
	Job        string
	From, To   outbox.Status
	Epoch      int64 // after the move
	Owner      string
	Expires    time.Time // of the lease after the move; zero without one
	LostLeases int
	At         time.Time // the database's clock
}

// Lease identifies a lease by its job and the epoch that the claim set.
type Lease struct {
	Job   string
	Epoch int64
}

// Replayed is what the moves of all jobs show.
type Replayed struct {
	Jobs, Moves, Claims, Expired int

	Illegal     []string // moves that the state machine does not allow, or from a status that the job did not have
	Epochs      []string // epochs that fell, or that did not rise at a claim
	TwoLeases   []string // L1: leases granted or taken away while another worker's was alive
	Regressions []string // moves out of a closed status

	// GivenUp is when a lease's owner gave it up, so that the job can run again. The owner's handler must have ended by
	// then, which [WentOn] checks.
	GivenUp map[Lease]time.Time
	Open    []string // jobs that are neither closed nor dead letters at the end
}

// Replay replays the histories of jobs against the legal moves. The moves come job by job, and those of each job in the
// order in which they were made.
func Replay(moves iter.Seq2[Move, error]) (r Replayed, err error) {
	r.GivenUp = map[Lease]time.Time{}
	var last Move
	for m, err := range moves {
		if err != nil {
			return r, err
		}
		if m.Job != last.Job {
			r.finish(last)
			last = Move{Job: m.Job}
			r.Jobs++
		}
		r.Moves++
		r.step(last, m)
		last = m
	}
	r.finish(last)
	return r, nil
}

func (r *Replayed) finish(last Move) {
	if last.Job != "" && !last.To.Closed() && last.To != outbox.Dead && last.To != outbox.Failed {
		r.Open = append(r.Open, fmt.Sprintf("%s is %s", last.Job, last.To))
	}
}

// begins reports whether a job may be stored like this: without a worker, at epoch 0, or claimed for the first time by
// the statement that stores it.
func begins(m Move) bool {
	switch m.To {
	case outbox.Pending, outbox.Created:
		return m.Epoch == 0
	case outbox.Running:
		return m.Epoch == 1
	}
	return false
}

func (r *Replayed) step(last, m Move) {
	where := fmt.Sprintf("%s: %s→%s at epoch %d", m.Job, m.From, m.To, m.Epoch)
	first := last.To == ""
	switch {
	case first && m.From != "":
		r.Illegal = append(r.Illegal, where+" without a beginning")
	case first && !begins(m):
		r.Illegal = append(r.Illegal, where+" is no beginning")
	case last.To.Closed() && !first:
		r.Regressions = append(r.Regressions, where+", after it was "+string(last.To))
	case m.From != last.To:
		r.Illegal = append(r.Illegal, where+", while it was "+string(last.To))
	case !first && m.From != m.To && !engine.CanBecome(m.From, m.To):
		r.Illegal = append(r.Illegal, where)
	}
	claimed := m.To == outbox.Running && m.From != outbox.Running
	if m.Epoch < last.Epoch || claimed && !first && m.Epoch <= last.Epoch {
		r.Epochs = append(r.Epochs, fmt.Sprintf("%s, after epoch %d", where, last.Epoch))
	}
	if claimed {
		r.Claims++
	}
	lapsed := m.LostLeases > last.LostLeases && m.From == outbox.Running
	if lapsed {
		r.Expired++
	}
	if m.From == outbox.Running && !lapsed && (m.To == outbox.Pending || m.To == outbox.Retrying) {
		r.GivenUp[Lease{m.Job, last.Epoch}] = m.At
	}
	// Its owner may give a lease up at any time. It may be taken away, or passed to another worker, only when it is
	// over.
	alive := last.To == outbox.Running && m.At.Before(last.Expires)
	stolen := m.To == outbox.Running && (m.Owner != last.Owner || m.Epoch != last.Epoch)
	if alive && (lapsed || stolen) {
		r.TwoLeases = append(r.TwoLeases, fmt.Sprintf("%s, %s before the lease of %s ended", where,
			last.Expires.Sub(m.At), last.Owner))
	}
}
