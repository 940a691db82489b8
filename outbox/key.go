package outbox

import (
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// maxKeyQueued bounds what a submission counts.
const maxKeyQueued = 100_000

// MaxKeyActive is the most that Options.MaxActive can ask for.
const MaxKeyActive = 1000

// DeathPolicy says what becomes of the jobs behind an ordered one that is failed
// or dead.
type DeathPolicy string

const (
	// HoldLine has them wait until somebody retries or dismisses the dead letter.
	HoldLine DeathPolicy = ""
	// SkipDead has them run. If the dead letter is retried, it is next.
	SkipDead DeathPolicy = "skip"
	// ParkKey sets all jobs of the key aside, together with those still to come,
	// until an operator unblocks the key; with Options.ParkAfter only if nobody has
	// dealt with the dead letter by then.
	ParkKey DeathPolicy = "park"
)

// LapsePolicy says what becomes of a job with a key whose worker died, stalled or
// could not reach the database for the length of its lease; also if nobody could.
type LapsePolicy string

const (
	// RetryLapsed has it run again, as jobs without a key do.
	RetryLapsed LapsePolicy = ""
	// FailStale closes it as [Stale]: nobody knows how far it came, and the next job
	// of the key makes up for it.
	FailStale LapsePolicy = "fail-stale"
	// BlockLapsed makes it [Dead] and parks the key: a person has to look before
	// anything else of the key runs.
	BlockLapsed LapsePolicy = "block"
)

func (o *Options) validateKey() (errs []error) {
	add := func(field, format string, args ...any) {
		errs = append(errs, invalid("Options."+field, format, args...))
	}
	if o.MaxActive < 0 || o.MaxActive > MaxKeyActive {
		add("MaxActive", "is %d, want 1 to %d, or 0 for 1", o.MaxActive, MaxKeyActive)
	}
	if o.Ordered && o.MaxActive > 1 {
		add("MaxActive", "is %d, but jobs that run one after the other (Options.Ordered) cannot run at once", o.MaxActive)
	}
	if o.Sequence < 0 {
		add("Sequence", "is %d, want 1 or more, or 0 for the order of commits", o.Sequence)
	}
	switch o.OnDeath {
	case HoldLine, SkipDead, ParkKey:
	default:
		add("OnDeath", "is %q, want %q, %q or %q", o.OnDeath, HoldLine, SkipDead, ParkKey)
	}
	switch o.OnLapse {
	case RetryLapsed, FailStale, BlockLapsed:
	default:
		add("OnLapse", "is %q, want %q, %q or %q", o.OnLapse, RetryLapsed, FailStale, BlockLapsed)
	}
	if o.ParkAfter < 0 || o.ParkAfter > maxHorizon {
		add("ParkAfter", "is %s, want 0 to 100 years", o.ParkAfter)
	}
	if o.ParkAfter != 0 && o.OnDeath != ParkKey {
		add("ParkAfter", "is set, but Options.OnDeath is not %q", ParkKey)
	}
	if !o.Ordered && (o.Sequence != 0 || o.OnDeath != HoldLine) {
		add("Ordered", "is false, but Options.Sequence and Options.OnDeath are about ordered jobs")
	}
	if o.Key == "" && (o.MaxActive != 0 || o.Ordered || o.OnLapse != RetryLapsed || o.MaxQueued != 0) {
		add("Key", "is empty, but MaxActive, Ordered, OnLapse and MaxQueued are rules of jobs with a key")
	}
	if o.MaxQueued < 0 || o.MaxQueued > maxKeyQueued {
		add("MaxQueued", "is %d, want 1 to %d, or 0 for any number", o.MaxQueued, maxKeyQueued)
	}
	switch o.WhenFull {
	case RejectFull, CoalesceFull, ReplaceOldest:
	default:
		add("WhenFull", "is %q, want %q, %q or %q", o.WhenFull, RejectFull, CoalesceFull, ReplaceOldest)
	}
	if o.WhenFull != RejectFull && o.MaxQueued == 0 {
		add("MaxQueued", "is 0, but Options.WhenFull is %q", o.WhenFull)
	}
	if o.MaxQueued != 0 && o.IdempotencyKey != "" {
		add("IdempotencyKey", "excludes Options.MaxQueued: which of them is to answer a repeat?")
	}
	return errs
}

// keyRules sets what is stored of the key and its rules: NULL for what is not asked for.
func (o *Options) keyRules(row *sqlgen.EnqueueJobParams) {
	if o.Key == "" {
		return
	}
	row.Key = new(o.Key) // not &o.Key: all of the options would live as long
	if o.MaxActive > 1 {
		row.MaxActive = new(int16(o.MaxActive))
	}
	row.ParkAfter = pgvalue.IntervalOrNull(o.ParkAfter)
	if o.Ordered {
		row.Ordered = new(true)
	}
	if o.Sequence != 0 {
		row.Position = new(o.Sequence)
	}
	if o.OnDeath != HoldLine {
		row.OnDeath = new(string(o.OnDeath))
	}
	if o.OnLapse != RetryLapsed {
		row.OnLapse = new(string(o.OnLapse))
	}
}

// valueOf is the zero value for NULL.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
