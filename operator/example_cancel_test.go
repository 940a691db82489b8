package operator_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// How do I cancel a job, and see what became of it?
func ExampleOperator_Cancel() {
	cancel := func(ctx context.Context, o *operator.Operator, id outbox.ID) error {
		done, err := o.Cancel(ctx, id)
		if closed, ok := errors.AsType[*operator.StatusError](err); ok {
			fmt.Println("too late, it is", closed.Status)
			return nil
		}
		if done == operator.CancelRequested {
			fmt.Println("it is running, and will stop")
		}
		return err
	}
	_ = cancel
}

// How do I store a job now and decide later whether it runs? Hold it; then release it, cancel it, or let its deadline
// pass.
func ExampleOperator_Release() {
	approve := func(ctx context.Context, o *operator.Operator, id outbox.ID, approved bool) error {
		if approved {
			return o.Release(ctx, id)
		}
		_, err := o.Cancel(ctx, id)
		return err
	}
	_ = approve
}
