package outbox

import (
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// maxKeyQueued bounds what a submission counts.
const maxKeyQueued = 100_000

// DeathPolicy says what becomes of the jobs behind an ordered one that is failed
// or dead. "" makes them wait until somebody retries or dismisses the dead
// letter.
type DeathPolicy string

const (
	// SkipDead lets them run. If the dead letter is retried, it is next.
	SkipDead DeathPolicy = "skip"
	// ParkKey sets all jobs of the key aside, together with those still to come,
	// until an operator unblocks the key; with KeyRules.ParkAfter only if nobody has
	// dealt with the dead letter by then.
	ParkKey DeathPolicy = "park"
)

// LapsePolicy says what becomes of a job with a key whose worker died, stalled or
// could not reach the database for the length of its lease; also if nobody could.
// "" runs it again, as jobs without a key do.
type LapsePolicy string

const (
	// FailStale closes it as [Stale]: nobody knows how far it came, and the next job
	// of the key makes up for it.
	FailStale LapsePolicy = "fail-stale"
	// BlockLapsed makes it [Dead] and parks the key: a person has to look before
	// anything else of the key runs.
	BlockLapsed LapsePolicy = "block"
)

// KeyRules bind a job to a key, and say how the jobs of the key run beside each other: the zero
// rules of a key are that one runs at a time, in any order. Each job carries its own; a key needs
// no declaration. The zero KeyRules are those of a job without a key.
type KeyRules struct {
	// Name is the key, of at most 512 bytes. Jobs of the same tenant, queue and key belong
	// together. "" is no key, and then no rule may be set.
	Name string

	MaxActive int           // jobs of the key that may run at once, itself included, in all processes; 0 is 1
	Ordered   bool          // start only as the first of the key's ordered jobs that is not finished, through retries
	Sequence  int64         // of an ordered job: its position, from 1; 0 is by when the transaction commits
	OnDeath   DeathPolicy   // of an ordered job: what happens behind it when it is failed or dead; "": they wait
	ParkAfter time.Duration // with ParkKey: hold up the line for this long first
	OnLapse   LapsePolicy   // what happens to the job when its lease lapses; "": it runs again
	MaxQueued int           // jobs of the key that may wait at once, this one included; 0 is any number. See Submit
	WhenFull  DepthPolicy   // what happens to the job if they do already; "": it is not stored
}

// validate reports every mistake in the rules of a job, which may have an idempotency key.
func (k *KeyRules) validate(idempotencyKey string) (errs []error) {
	add := func(field, format string, args ...any) {
		errs = append(errs, invalid("Options.Key"+field, format, args...))
	}
	if err := validKey("Options.Key", k.Name); err != nil {
		errs = append(errs, err)
	}
	if k.MaxActive < 0 || k.MaxActive > engine.MaxKeyActive {
		add(".MaxActive", "is %d, want 1 to %d, or 0 for 1", k.MaxActive, engine.MaxKeyActive)
	}
	if k.Ordered && k.MaxActive > 1 {
		add(".MaxActive", "is %d, but jobs that run one after the other (Options.Key.Ordered) cannot run at once", k.MaxActive)
	}
	if k.Sequence < 0 {
		add(".Sequence", "is %d, want 1 or more, or 0 for the order of commits", k.Sequence)
	}
	switch k.OnDeath {
	case "", SkipDead, ParkKey:
	default:
		add(".OnDeath", "is %q, want %q, %q or %q", k.OnDeath, "", SkipDead, ParkKey)
	}
	switch k.OnLapse {
	case "", FailStale, BlockLapsed:
	default:
		add(".OnLapse", "is %q, want %q, %q or %q", k.OnLapse, "", FailStale, BlockLapsed)
	}
	if k.ParkAfter < 0 || k.ParkAfter > engine.MaxDuration {
		add(".ParkAfter", "is %s, want 0 to 100 years", k.ParkAfter)
	}
	if k.ParkAfter != 0 && k.OnDeath != ParkKey {
		add(".ParkAfter", "is set, but Options.Key.OnDeath is not %q", ParkKey)
	}
	if !k.Ordered && (k.Sequence != 0 || k.OnDeath != "") {
		add(".Ordered", "is false, but Options.Key.Sequence and Options.Key.OnDeath are about ordered jobs")
	}
	if k.Name == "" && (k.MaxActive != 0 || k.Ordered || k.OnLapse != "" || k.MaxQueued != 0) {
		add("", "is empty, but MaxActive, Ordered, OnLapse and MaxQueued are rules of jobs with a key")
	}
	if k.MaxQueued < 0 || k.MaxQueued > maxKeyQueued {
		add(".MaxQueued", "is %d, want 1 to %d, or 0 for any number", k.MaxQueued, maxKeyQueued)
	}
	switch k.WhenFull {
	case "", CoalesceFull, ReplaceOldest:
	default:
		add(".WhenFull", "is %q, want %q, %q or %q", k.WhenFull, "", CoalesceFull, ReplaceOldest)
	}
	if k.WhenFull != "" && k.MaxQueued == 0 {
		add(".MaxQueued", "is 0, but Options.Key.WhenFull is %q", k.WhenFull)
	}
	if k.MaxQueued != 0 && idempotencyKey != "" {
		errs = append(errs, invalid("Options.IdempotencyKey", "excludes Options.Key.MaxQueued: which of them is to answer a repeat?"))
	}
	return errs
}

// into sets what is stored of the key and its rules: NULL for what is not asked for.
func (k KeyRules) into(row *sqlgen.EnqueueJobParams) {
	if k.Name == "" {
		return
	}
	row.Key = new(k.Name) // a copy: all of the options would live as long
	if k.MaxActive > 1 {
		row.MaxActive = new(int16(k.MaxActive))
	}
	row.ParkAfter = pgvalue.IntervalOrNull(k.ParkAfter)
	if k.Ordered {
		row.Ordered = new(true)
	}
	if k.Sequence != 0 {
		row.Position = new(k.Sequence)
	}
	if k.OnDeath != "" {
		row.OnDeath = new(string(k.OnDeath))
	}
	if k.OnLapse != "" {
		row.OnLapse = new(string(k.OnLapse))
	}
}

// fillFrom takes the rules of d for those that are not set. What belongs together is taken together.
func (k *KeyRules) fillFrom(d *KeyRules) {
	if k.OnDeath == "" && k.ParkAfter == 0 {
		k.OnDeath, k.ParkAfter = d.OnDeath, d.ParkAfter
	}
	if k.MaxQueued == 0 && k.WhenFull == "" {
		k.MaxQueued, k.WhenFull = d.MaxQueued, d.WhenFull
	}
	orDefault(&k.Name, d.Name)
	orDefault(&k.MaxActive, d.MaxActive)
	orDefault(&k.Ordered, d.Ordered)
	orDefault(&k.Sequence, d.Sequence)
	orDefault(&k.OnLapse, d.OnLapse)
}
