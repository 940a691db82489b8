package operator_test

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// How do I keep all my processes together within the limits of a service that allows ten requests at a time, and six
// hundred a minute? Give its jobs a queue of their own, and limit that queue.
func ExampleOperator_Limit() {
	limit := func(ctx context.Context, o *operator.Operator) error {
		_, _, err := o.Limit(ctx, "bank", operator.Limits{
			MaxRunning: new(10),
			Rate:       &operator.Rate{Starts: 600, Interval: time.Minute},
		})
		return err
	}
	_ = limit
}
