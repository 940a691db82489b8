package outbox

import (
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// maxKeyQueued bounds how many jobs a submission counts.
const maxKeyQueued = 100_000

// DeathPolicy selects what happens to the jobs behind an ordered one that is failed or dead. With "" they wait until
// somebody retries or dismisses the dead letter.
type DeathPolicy string

const (
	// SkipDead lets them run. If the dead letter is retried, it goes next.
	SkipDead DeathPolicy = "skip"
	// ParkKey parks all jobs of the key, including later ones, until an operator unblocks the key. With
	// KeyRules.ParkAfter, it does so only if nobody has dealt with the dead letter by then.
	ParkKey DeathPolicy = "park"
)

// LapsePolicy selects what happens to a job with a key whose lease lapsed because its worker died, stalled or could not
// reach the database for the length of the lease, including an outage that kept all workers from it. With "" the job
// runs again, as jobs without a key do.
type LapsePolicy string

const (
	// FailStale closes the job as [Stale]: its progress is unknown, and the next job of the key makes up for it.
	FailStale LapsePolicy = "fail-stale"
	// BlockLapsed makes the job [Dead] and parks the key: a person must look before any other job of the key runs.
	BlockLapsed LapsePolicy = "block"
)

// KeyRules bind a job to a key and limit how the jobs of the key run together. Without further rules, the jobs of a key
// run one at a time, in any order. Each job carries its own rules; a key needs no declaration. The zero KeyRules
// describe a job without a key.
type KeyRules struct {
	// Name is the key, of at most 512 bytes. Jobs of the same tenant, queue and key belong together. "" means no key,
	// and then no other rule may be set.
	Name string

	// MaxActive is how many jobs of the key may run at once in all processes, this one included: at most 1000; 0 means
	// 1. Ordered jobs run one at a time.
	MaxActive int
	Ordered   bool          // start only as the first unfinished one of the key's ordered jobs, through retries
	Sequence  int64         // position of an Ordered job, from 1; 0 orders by when the transaction commits
	OnDeath   DeathPolicy   // what happens behind this Ordered job if it is failed or dead; "" makes the others wait
	ParkAfter time.Duration // how long the jobs behind wait before the key is parked; needs OnDeath ParkKey
	OnLapse   LapsePolicy   // what happens to the job when its lease lapses; "" runs it again
	// MaxQueued is how many jobs of the key may wait at once, this one included: at most 100 000; 0 means any number.
	// It excludes Options.IdempotencyKey. See [Submit].
	MaxQueued int
	WhenFull  DepthPolicy // what happens to the job if MaxQueued already wait; "" does not store it. Needs MaxQueued
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
		add(".MaxActive", "is %d, but jobs that run one after the other (Options.Key.Ordered) cannot run at once",
			k.MaxActive)
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
		errs = append(errs, invalid("Options.IdempotencyKey",
			"excludes Options.Key.MaxQueued: which of them is to answer a repeat?"))
	}
	return errs
}

// into sets the row's columns for the key and its rules, with NULL for those that are unset.
func (k KeyRules) into(row *sqlgen.EnqueueJobParams) {
	if k.Name == "" {
		return
	}
	row.Key = new(k.Name) // a copy, so that the row does not keep all of the options alive
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

// fillFrom takes from d the rules that are not set. Fields that belong together are taken together.
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
