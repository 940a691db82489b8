package outbox

// Defaulter is what Args are that say how jobs of their kind are run: once, beside
// the type, instead of wherever one is enqueued.
type Defaulter interface {
	Args
	// DefaultOptions are the options of a job with these arguments: where a producer
	// leaves a field of its Options to the zero value, this one's counts. It must be
	// cheap, and is called once or more for each job.
	DefaultOptions() Options
}

// WithDefaults returns opts as Enqueue takes them: with the DefaultOptions of args,
// if they are a [Defaulter], where opts have the zero value. What belongs together is
// taken together: a producer that says when (RunAt, Delay), what a death does
// (OnDeath, ParkAfter) or what a full key does (MaxQueued, WhenFull) says all of it.
func WithDefaults(args Args, opts Options) Options {
	opts.fillFrom(args)
	return opts
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
	if o.OnDeath == HoldLine && o.ParkAfter == 0 {
		o.OnDeath, o.ParkAfter = d.OnDeath, d.ParkAfter
	}
	if o.MaxQueued == 0 && o.WhenFull == RejectFull {
		o.MaxQueued, o.WhenFull = d.MaxQueued, d.WhenFull
	}
	orDefault(&o.Queue, d.Queue)
	orDefault(&o.Priority, d.Priority)
	orDefault(&o.MaxAttempts, d.MaxAttempts)
	orDefault(&o.Timeout, d.Timeout)
	orDefault(&o.Key, d.Key)
	orDefault(&o.IdempotencyKey, d.IdempotencyKey)
	orDefault(&o.Tenant, d.Tenant)
	orDefault(&o.Caller, d.Caller)
	orDefault(&o.Check, d.Check)
	orDefault(&o.Protect, d.Protect)
	orDefault(&o.Hold, d.Hold)
	orDefault(&o.Watched, d.Watched)
	orDefault(&o.MaxActive, d.MaxActive)
	orDefault(&o.Ordered, d.Ordered)
	orDefault(&o.Sequence, d.Sequence)
	orDefault(&o.OnLapse, d.OnLapse)

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
