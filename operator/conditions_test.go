package operator_test

import (
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The conditions of an operator are about the job of its caller. An operation and the removal of a sink act on jobs
// that neither names: with the conditions they would pass over all of them.
func TestActsOnManyIgnoreTheConditions(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	strict := o.Only(outbox.Running).AtEpoch(99)

	enqueue(t, db, "mail", outbox.Options{Hold: true})
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{
		Act: operator.ReleaseJobs, Jobs: operator.OpenFilter{Queue: "default"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if op = run(t, strict, o, op.ID, finished); op.Done != 1 || op.Passed != 0 {
		t.Errorf("the operation has done %d and passed over %d, want 1 and 0", op.Done, op.Passed)
	}

	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('orders', 1)`)
	held := enqueue(t, db, "mail", outbox.Options{})
	exec(t, db, `UPDATE outbox.jobs SET kind = 'relay:orders', queue = 'relay:orders' WHERE id = $1`, held)
	exec(t, db, `INSERT INTO outbox.held_messages VALUES ('orders', $1, $2, NULL, 1)`, held, outbox.RootTenant)
	if err := strict.RemoveSink(t.Context(), "orders", true); err != nil {
		t.Errorf("remove the sink: %v", err)
	}
	if got := job(t, o, held).Status; got != outbox.Cancelled {
		t.Errorf("its message is %s, want cancelled", got)
	}
}
