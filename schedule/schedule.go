package schedule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A Schedule declares when to enqueue which job. Make one with [Cron] or [Every].
type Schedule struct {
	name   string
	timing timing
	args   outbox.Args
	opts   Options
	check  outbox.Checker // of the payload; nil means no check
	err    error          // a mistake in the timing
}

// Cron declares a schedule by a cron expression: minute, hour, day of month, month and day of week, in the zone with
// the given IANA name. As usual, a day must match both day fields if one of them begins with *; otherwise matching one
// of them is enough. Months and days have names (JAN, MON). For the day of the month, L is the last day and 15W the
// weekday nearest to the 15th; for the day of the week, FRIL is the last Friday of the month and FRI#2 the second.
// @hourly, @daily, @weekly, @monthly and @yearly replace a whole expression.
//
// Validate returns mistakes, and so does app.Run before it starts anything.
func Cron(name, expression, zone string, args outbox.Args, opts Options) Schedule {
	timing, err := newCron(expression, zone)
	return Schedule{name: name, timing: timing, args: args, opts: opts, err: err}
}

// Every declares a schedule that ticks at the multiples of interval since the beginning of 1970 in UTC: every six hours
// means 00:00, 06:00, 12:00 and 18:00. An interval is at least a second and a whole number of milliseconds.
func Every(name string, interval time.Duration, args outbox.Args, opts Options) Schedule {
	timing, err := newInterval(interval)
	return Schedule{name: name, timing: timing, args: args, opts: opts, err: err}
}

// Missed selects what happens to ticks that came while no process ran to fire them. They are noticed when a process
// runs again.
type Missed string

// These are the policies for missed ticks.
const (
	Once Missed = "once" // one job, for the latest of them
	Skip Missed = "skip" // none, unless the latest is less than a minute old and so merely late
	All  Missed = "all"  // a job for each of the latest MissedLimit ticks, in their order
)

// Options set how a schedule's jobs are run; the first fields are those of [outbox.Options]. The zero value describes
// jobs of the default queue.
type Options struct {
	Queue       string
	Priority    int
	MaxAttempts int
	Timeout     time.Duration
	Backoff     outbox.Backoff
	// Key must not set Sequence and MaxQueued; use a Deadline to keep jobs from piling up while no worker runs.
	Key     outbox.KeyRules
	Headers map[string]string // "schedule" and "scheduled_for" are reserved
	Tenant  outbox.ID
	Hold    bool
	// Streamed stores each change of the jobs as an event; false leaves it to the kind's DefaultOptions.
	Streamed bool

	// Deadline is how long after its tick a job expires, whenever it was enqueued: a job for a tick that was missed for
	// longer expires at once. 0 means never. If Deadline equals the interval of the schedule, no two of its jobs wait
	// at once.
	Deadline time.Duration

	Missed      Missed // "" means Once
	MissedLimit int    // of All: 1 to 1000; 0 means 10
}

const (
	defaultMissedLimit = 10
	maxMissedLimit     = 1000
	maxDeadline        = 100 * 365 * 24 * time.Hour
)

// Name returns the schedule's name, which is unique within its tenant.
func (s Schedule) Name() string { return s.name }

// Tenant returns the tenant that owns the schedule and its jobs.
func (s Schedule) Tenant() outbox.ID { return cmp.Or(s.opts.Tenant, outbox.RootTenant) }

// Job returns the kind and the queue of the schedule's jobs, if [Schedule.Validate] accepts it.
func (s Schedule) Job() (kind, queue string) {
	p, _ := s.params()
	return p.Kind, p.Queue
}

// Validate returns every mistake, as [*outbox.InvalidError]s that name the field: "expression.hour", "zone",
// "Options.Queue".
func (s Schedule) Validate() error {
	_, err := s.params()
	return s.named(err)
}

// named adds the schedule's name to an error, if there is one: a program declares many.
func (s Schedule) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("schedule %q: %w", s.name, err)
}

// Next returns the schedule's first tick after an instant.
func (s Schedule) Next(after time.Time) (time.Time, error) {
	if s.err != nil {
		return time.Time{}, s.err
	}
	if s.timing == (timing{}) {
		return time.Time{}, errors.New("the schedule has no timing: make it with Cron or Every")
	}
	return s.timing.next(after)
}

// params returns the schedule in stored form, without its times.
func (s Schedule) params() (p sqlgen.DeclareScheduleParams, err error) {
	errs := []error{s.err}
	if fault := engine.NameFault(s.name); fault != "" {
		errs = append(errs, invalid.Field("name", "%s", fault))
	}
	errs = append(errs, s.opts.validate())
	job := s.opts.job()
	job.Check = s.check
	kept, err := outbox.Encode(s.args, job)
	o := kept.Options
	if o.Protect != nil { // Encode does not say that it comes from the kind's DefaultOptions; storable does
		err = nil
	}
	o.IdempotencyKey = "" // of the kind; each tick has its own
	if s.opts.Key.MaxQueued == 0 {
		o.Key.MaxQueued = 0 // of the kind; meant for producers, which would get the error
	}
	errs = append(errs, storable(o))
	if err = errors.Join(append(errs, err)...); err != nil {
		return p, err
	}
	args := kept.Args.(outbox.Raw)
	o.Headers = engine.Caller(o.Caller).AddTo(o.Headers)
	p = sqlgen.DeclareScheduleParams{
		TenantID: pgvalue.UUID(o.Tenant), Name: s.name,
		Missed: string(cmp.Or(s.opts.Missed, Once)), MissedLimit: int32(cmp.Or(s.opts.MissedLimit, defaultMissedLimit)),
		Kind: args.KindName, Queue: cmp.Or(o.Queue, engine.DefaultQueue), Priority: int16(o.Priority),
		MaxAttempts: int32(cmp.Or(o.MaxAttempts, engine.DefaultMaxAttempts)),
		Timeout:     pgvalue.IntervalOrNull(o.Timeout), Backoff: intervals(o.Backoff),
		Payload: args.Payload, ContentType: args.ContentType,
		Every: pgvalue.IntervalOrNull(s.timing.every),
	}
	if s.timing.every == 0 {
		p.Expression, p.TimeZone = &s.timing.expression, &s.timing.zone
	}
	if o.Key.Name != "" {
		p.Key = &o.Key.Name
	}
	p.Deadline = pgvalue.IntervalOrNull(s.opts.Deadline)
	p.Hold, p.Streamed = orNull(o.Hold), orNull(o.Streamed)
	p.Ordered = orNull(o.Key.Ordered)
	p.OnDeath = orNull(string(o.Key.OnDeath))
	p.ParkAfter = pgvalue.IntervalOrNull(o.Key.ParkAfter)
	p.OnLapse = orNull(string(o.Key.OnLapse))
	if o.Key.MaxActive > 1 {
		p.MaxActive = new(int16(o.Key.MaxActive))
	}
	if len(o.Headers) > 0 {
		text, err := json.Marshal(o.Headers)
		if err != nil {
			return p, err // unreachable for a map of strings
		}
		p.Headers = new(string(text))
	}
	return p, nil
}

// job returns the options of the schedule's jobs.
func (o Options) job() outbox.Options {
	if o.Tenant.IsZero() {
		o.Tenant = outbox.RootTenant
	}
	return outbox.Options{
		Queue: o.Queue, Priority: o.Priority, MaxAttempts: o.MaxAttempts, Timeout: o.Timeout, Backoff: o.Backoff,
		Key:     o.Key,
		Headers: o.Headers, Tenant: o.Tenant, Hold: o.Hold, Streamed: o.Streamed,
	}
}

// maxHeadersBytes leaves room in a job for the headers of its tick, with a name of 128 bytes, and for those of its
// trace.
const maxHeadersBytes = engine.MaxHeadersBytes - 1<<10

// storable refuses headers that the schedule itself sets, and headers that leave no room for those. It also refuses
// what the options or the kind's DefaultOptions may contain that a schedule cannot store, because it concerns one job
// or is decided at enqueue. When a job is due, the schedule determines.
func storable(o outbox.Options) error {
	var errs []error
	refuse := func(set bool, field, by string) {
		if set {
			errs = append(errs, invalid.Field("Options."+field, "is set by %s: it concerns one job, and a schedule has many",
				by))
		}
	}
	const kind, either = "the kind's DefaultOptions", "the schedule or the kind's DefaultOptions"
	refuse(o.Protect != nil, "Protect", kind)
	refuse(!o.Deadline.IsZero(), "Deadline", kind)
	refuse(o.Key.Sequence != 0, "Key.Sequence", either)
	refuse(o.Key.MaxQueued != 0, "Key.MaxQueued", either)
	for _, name := range []string{headerSchedule, headerScheduledFor} {
		if _, taken := o.Headers[name]; taken {
			errs = append(errs, invalid.Field("Options.Headers",
				"have %q, which every job of a schedule carries already", name))
		}
	}
	all, _ := json.Marshal(engine.Caller(o.Caller).AddTo(o.Headers)) // cannot fail for a map of strings
	if n := len(all); n > maxHeadersBytes && n <= engine.MaxHeadersBytes {
		errs = append(errs, invalid.Field("Options.Headers",
			"are %d bytes as JSON, want at most %d: each tick adds its own", n, maxHeadersBytes))
	}
	return errors.Join(errs...)
}

func (o Options) validate() error {
	var errs []error
	switch o.Missed {
	case "", Once, Skip, All:
	default:
		errs = append(errs, invalid.Field("Options.Missed", "is %q, want once, skip or all", o.Missed))
	}
	if o.MissedLimit < 0 || o.MissedLimit > maxMissedLimit {
		errs = append(errs, invalid.Field("Options.MissedLimit", "is %d, want 1 to %d, or 0 for %d", o.MissedLimit,
			maxMissedLimit, defaultMissedLimit))
	}
	if o.Deadline < 0 || o.Deadline > maxDeadline || o.Deadline%time.Microsecond != 0 {
		errs = append(errs, invalid.Field("Options.Deadline",
			"is %s, want 1µs to 100 years in whole microseconds, or 0 for none", o.Deadline))
	}
	return errors.Join(errs...)
}

// intervals returns nil, which is NULL, for an empty backoff.
func intervals(b outbox.Backoff) (waits []pgtype.Interval) {
	for _, wait := range b {
		waits = append(waits, pgvalue.Interval(wait))
	}
	return waits
}

// orNull returns nil, which is NULL, for the zero value.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
