package outbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// How do I give one job other waits between its attempts than its kind's?
func ExampleBackoff() {
	call := func(ctx context.Context, db outbox.DB, number string) error {
		_, err := outbox.Enqueue(ctx, db, SendCode{number}, outbox.Options{
			MaxAttempts: 4,
			Backoff:     outbox.Backoff{5 * time.Second, 30 * time.Second, 2 * time.Minute}, // the caller is waiting
		})
		return err
	}
	_ = call
	fmt.Println(outbox.Exponential(time.Second, 10*time.Second))
	// Output: [1s 2s 4s 8s 10s]
}
