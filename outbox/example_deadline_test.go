package outbox_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

type SendCode struct{ Phone string }

func (SendCode) Kind() string { return "code.send" }

// How do I keep a job from running once it has become pointless? A code that is valid for five minutes is sent within
// them or not at all.
func ExampleOptions_deadline() {
	signIn := func(ctx context.Context, tx pgx.Tx, phone string, validUntil time.Time) error {
		_, err := outbox.Enqueue(ctx, tx, SendCode{Phone: phone}, outbox.Options{Deadline: validUntil})
		return err
	}
	_ = signIn
}
