package mutants

// operations are bugs of operations on many open jobs.
var operations = []Mutant{
	{
		Name:      "an edit of another epoch",
		Breaks:    "a job that has run since it was counted gets a queue and a time that nobody meant for it",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"internal/sqlgen.EditJobs", `WHERE jobs.epoch = meant.epoch`, `WHERE jobs.epoch >= meant.epoch`}},
		Checks:    []Check{test("operator", "TestAnEditChangesTheJobsThatWereCounted", "want 154 and 3 left alone")},
	},
	{
		Name:      "a claimed job is edited",
		Breaks:    "a job that a claim has made running meanwhile is edited, and its worker fenced off",
		Invariant: "An operation does what was previewed",
		Edits: []Edit{ // both: a claim raises the epoch, too
			{"internal/sqlgen.EditJobs", `WHERE jobs.epoch = meant.epoch`, `WHERE jobs.epoch >= meant.epoch`},
			{"internal/sqlgen.EditJobs", `AND jobs.status::text = ANY ($3::text[])`, `AND $3::text[] IS NOT NULL`},
		},
		Checks: []Check{test("operator", "TestAnEditAndAClaimOfTheSameJob", "want it as the claim has left it")},
	},
	{
		Name:      "a job with a key is moved to another queue",
		Breaks:    "jobs of a key run beside each other, and in another order, in two queues",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"internal/sqlgen.EditJobs", `OR jobs.key IS NULL AND jobs.kind`, `OR jobs.kind`}},
		Checks:    []Check{test("operator", "TestAnEditKeepsTheRulesOfKeys", "want all 3 left alone")},
	},
	{
		Name:      "a key waits for a job that was put off",
		Breaks:    "what is blocked behind a job of a key waits for its new time, though a slot is free",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"internal/sqlgen.EditJobs", `WHERE edited.key IS NOT NULL`, `WHERE edited.key IS NULL`}},
		Checks:    []Check{test("operator", "TestAnEditKeepsTheRulesOfKeys", "want it to have moved on")},
	},
	{
		Name:      "an operation forgets its place",
		Breaks:    "jobs that a step has acted on are acted on again by the process that goes on",
		Invariant: "An operation does what was previewed",
		Edits: []Edit{
			{"operator.Operator.stepOnJobs", `WHERE operation_id = $1 AND job_id = ANY ($2)`, `WHERE operation_id = $1 AND job_id = ANY ($2) AND false`},
		},
		Checks: []Check{test("operator", "TestAnOperationOnJobsIsStoppedKilledAndResumed/retry", "want 3000, each once")},
	},
	{
		Name:      "an operation takes what has come since",
		Breaks:    "an act on many is done to jobs that nobody was shown",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"operator.meantJobs", `($8::text IS NULL`, `(true`}},
		Checks:    []Check{test("operator", "TestAnOperationActsOnTheJobsThatWereCounted", "want 25")},
	},
	{
		Name:      "a running job is another one once its lease is extended",
		Breaks:    "running jobs that a person was shown, and has confirmed, are not asked to stop",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"operator.meantJobs", `OR jobs.status = 'running' AND`, `OR false AND`}},
		Checks:    []Check{test("operator", "TestAnOperationActsOnTheRunningJobsThatWereCounted", "want 3 of then")},
	},
	{
		Name:      "a count does not know savepoints",
		Breaks:    "jobs that a savepoint had stored before a count, and that commit after it, are cancelled though nobody was shown them",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"operator.Operator.asOfNow", `snapshotText(first, next, unsettled)`, `snapshotText(first, next, unsettled[:0])`}},
		Checks:    []Check{test("operator", "TestAnOperationLeavesOutTheJobsOfASavepoint", "want the 10 that were counted")},
	},
	{
		Name:      "a release keeps the epoch",
		Breaks:    "an operation cancels a job that another operator has released since it was counted",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"migrations.outbox.release", `epoch  = jobs.epoch + 1`, `epoch  = jobs.epoch`}},
		Checks:    []Check{test("operator", "TestAnOperationLeavesAReleasedJobAlone", "want a refusal")},
	},
}
