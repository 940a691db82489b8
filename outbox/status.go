package outbox

import (
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// A Status is the stage of its life that a job has reached. The database enforces the legal moves
// (migrations/functions/refuse_move.sql) and docs/reference/states.md draws them; a test compares the three.
type Status string

// Open statuses live in outbox.jobs.
const (
	Created  Status = "created"  // stored but held: not eligible until released
	Pending  Status = "pending"  // eligible once run_at has come
	Blocked  Status = "blocked"  // eligible, but its key is at its limit
	Running  Status = "running"  // leased to one worker
	Retrying Status = "retrying" // failed recoverably; eligible once run_at has come
	Failed   Status = "failed"   // the handler declared it failed permanently; waits for a person
	Dead     Status = "dead"     // attempts exhausted, or it kept killing its workers; waits for a person
)

// Closed statuses live in outbox.history and never change.
const (
	Succeeded Status = "succeeded"
	Cancelled Status = "cancelled"
	Expired   Status = "expired"   // its deadline passed
	Skipped   Status = "skipped"   // a depth policy replaced it
	Stale     Status = "stale"     // a keyed job whose lease lapsed under the policy fail-stale
	Dismissed Status = "dismissed" // a person dismissed a dead letter
)

var statuses = engine.Statuses[Status]()

// Closed reports whether the job is finished and stays in the history.
func (s Status) Closed() bool { return slices.Index(statuses, s) >= slices.Index(statuses, Succeeded) }
