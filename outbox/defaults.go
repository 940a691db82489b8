package outbox

import "github.com/posthaste-dev/posthaste/internal/engine"

// A Defaulter is an Args that supplies the options of its kind's jobs: once, next to the type, instead of at each call
// that enqueues one.
type Defaulter interface {
	Args
	// DefaultOptions returns the options of a job with these arguments. They apply to each field that the producer's
	// Options leave at the zero value, so a producer cannot set such a field back to zero: give a default only to
	// fields that no producer needs at zero. It must be cheap, and is called once or more for each job.
	DefaultOptions() Options
}

func (o *Options) fillFrom(args Args) {
	kind, ok := args.(Defaulter)
	if !ok {
		return
	}
	d := kind.DefaultOptions()
	if o.Delay == 0 && o.RunAt.IsZero() {
		o.Delay, o.RunAt = d.Delay, d.RunAt
	}
	o.Key.fillFrom(&d.Key)
	orDefault(&o.Queue, d.Queue)
	orDefault(&o.Priority, d.Priority)
	orDefault(&o.MaxAttempts, d.MaxAttempts)
	orDefault(&o.Timeout, d.Timeout)
	orDefault(&o.IdempotencyKey, d.IdempotencyKey)
	orDefault(&o.Tenant, d.Tenant)
	orDefault(&o.Caller, d.Caller)
	orDefault(&o.Check, d.Check)
	orDefault(&o.Protect, d.Protect)
	orDefault(&o.Hold, d.Hold)
	orDefault(&o.Streamed, d.Streamed)
	orDefault(engine.InternalOf(o), *engine.InternalOf(&d))

	if o.Backoff == nil {
		o.Backoff = d.Backoff
	}
	if o.Headers == nil {
		o.Headers = d.Headers
	}
	if o.Deadline.IsZero() {
		o.Deadline = d.Deadline
	}
}

func orDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}
