// Package checker judges a run by what the ledgers and the database say. Its functions are pure: tests give them
// histories with a planted fault.
package checker

// Queue is Jepsen's total queue: what producers attempted, the responses they got, and what came out. A commit with an
// unknown outcome is neither success nor failure. A key may be attempted several times; it counts as acknowledged if
// one attempt was, and as failed if all attempts certainly failed.
type Queue struct {
	fate map[string]fate
}

type fate struct {
	attempted, acked, failed, unknown uint16 // how often
	delivered                         uint32
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{fate: map[string]fate{}} }

func (q *Queue) change(key string, change func(*fate)) {
	f := q.fate[key]
	change(&f)
	q.fate[key] = f
}

// Attempted records that a transaction begins.
func (q *Queue) Attempted(key string) { q.change(key, func(f *fate) { f.attempted++ }) }

// Acked records that a commit was acknowledged.
func (q *Queue) Acked(key string) { q.change(key, func(f *fate) { f.acked++ }) }

// Failed records that a transaction certainly did not commit.
func (q *Queue) Failed(key string) { q.change(key, func(f *fate) { f.failed++ }) }

// Unknown records that a transaction may have committed.
func (q *Queue) Unknown(key string) { q.change(key, func(f *fate) { f.unknown++ }) }

// Delivered records that a job completed.
func (q *Queue) Delivered(key string) { q.change(key, func(f *fate) { f.delivered++ }) }

// Verdict is the queue's sets. The queue is valid if nothing is lost or unexpected.
type Verdict struct {
	Attempted, Acked, Unknown, Delivered int // keys

	Lost       []string // acknowledged, and never came out
	Unexpected []string // came out, but was never attempted, or failed every time
	Duplicated []string // came out more than once: legal for executions
	Recovered  []string // came out after an unknown outcome: legal
}

// Verdict judges what was recorded. An attempt without a recorded end (its producer was killed) is unknown.
func (q *Queue) Verdict() (v Verdict) {
	for key, f := range q.fate {
		open := f.attempted > f.failed+f.acked // some try may have committed unseen
		switch {
		case f.acked > 0:
			v.Acked++
		case open:
			v.Unknown++
		}
		if f.attempted > 0 {
			v.Attempted++
		}
		if f.delivered > 0 {
			v.Delivered++
		}
		switch {
		case f.acked > 0 && f.delivered == 0:
			v.Lost = append(v.Lost, key)
		case f.delivered > 0 && f.acked == 0 && !open:
			v.Unexpected = append(v.Unexpected, key)
		case f.delivered > 0 && f.acked == 0:
			v.Recovered = append(v.Recovered, key)
		}
		if f.delivered > 1 {
			v.Duplicated = append(v.Duplicated, key)
		}
	}
	return v
}
