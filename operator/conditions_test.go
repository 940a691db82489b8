package operator_test

import (
	"errors"
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

func TestWhatDoesNotExistIsNotEmpty(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	ctx, id, key := t.Context(), outbox.NewID(), operator.KeyName{Key: "k"}
	_, attempts := o.Attempts(ctx, id)
	_, held := o.Held(ctx, "orders", operator.HeldPlace{}, 0)
	_, letters := o.BlockingLetters(ctx, key)
	_, blocks := o.Blocks(ctx, key)
	for _, c := range []struct {
		list      string
		got, want error
	}{
		{"attempts", attempts, operator.ErrNotFound},
		{"held", held, operator.ErrSinkNotFound},
		{"blocking letters", letters, operator.ErrKeyNotFound},
		{"blocks", blocks, operator.ErrKeyNotFound},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.list, c.got, c.want)
		}
	}

	id = enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	_, attempts = o.Attempts(ctx, id)
	_, held = o.Held(ctx, "orders", operator.HeldPlace{}, 0)
	_, letters = o.BlockingLetters(ctx, key)
	_, blocks = o.Blocks(ctx, key)
	if err := errors.Join(attempts, held, letters, blocks); err != nil {
		t.Errorf("of what exists and has none: %v", err)
	}
	theirs := operator.WithTenant(ctx, outbox.NewID())
	if _, err := o.Attempts(theirs, id); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("another tenant's attempts: %v, want %v", err, operator.ErrNotFound)
	}
}
