package lease

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A claim without room may have locked the row of a job that it did not get:
//
//  1. it takes its snapshot, in which the job waits;
//  2. another client claims the job and commits;
//  3. it locks the newest version of the job's row, sees that the job is not waiting any more, and goes on to one that
//     is; it keeps the lock until it commits;
//  4. the other client extends its lease, and learns that the row was locked.
//
// So the extension was contended, although the claim did not return the job.
func TestAFullClaimMayHaveLockedWhatItDidNotGet(t *testing.T) {
	t.Parallel()
	job, got := outbox.NewID(), outbox.NewID()
	h := &history{jobs: []outbox.ID{job, got}}
	ask := func(client int, call, answer int64, about map[outbox.ID]operation) *ask {
		a := &ask{client: client, call: call, answer: answer, quiet: answer, about: about}
		h.asks = append(h.asks, a)
		return a
	}
	running := output{done: true, status: outbox.Running, epoch: 1, attempt: 1}
	full := ask(0, 1, 9, map[outbox.ID]operation{job: {in: input{verb: claim}}, got: {in: input{verb: claim}}})
	full.passedBy(false, false)
	full.about[got] = operation{input{verb: claim}, running}
	ask(1, 2, 3, map[outbox.ID]operation{job: {input{verb: claim}, running}})
	ask(1, 4, 5, map[outbox.ID]operation{job: {in: input{verb: extend, epoch: 1}}}) // neither done nor lost

	of := h.byJob()
	if len(of[0]) != 2 || len(of[1]) != 1 {
		t.Errorf("%d and %d operations are judged, want those that say something: 2 and 1", len(of[0]), len(of[1]))
	}
	for i, operations := range of {
		if got := porcupine.CheckOperationsTimeout(register, operations, patience); got != porcupine.Ok {
			t.Errorf("job %d is %s", i, got)
		}
	}
	// Without a statement that could have held the lock, the same result is an error.
	h.asks = h.asks[1:]
	if got := porcupine.CheckOperationsTimeout(register, h.byJob()[0], patience); got != porcupine.Ok {
		return
	}
	t.Error("an extension that was refused for a lock of nobody is linearizable")
}
