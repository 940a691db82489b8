package mutants

var ending = []Mutant{
	{
		Name:      "a job ends when the statement that closes it begins",
		Breaks:    "a job that was started while that statement waited ends before it starts",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"migrations.outbox.history", `NOT NULL DEFAULT clock_timestamp()`, `NOT NULL DEFAULT statement_timestamp()`}},
		Checks:    []Check{test("outbox", "TestAJobNeverEndsBeforeItStarted", "it ended before it started")},
	},
	{
		Name:      "claim past the deadline",
		Breaks:    "a job starts after the instant from which on it is pointless",
		Invariant: "Nothing starts, runs on or succeeds past its deadline",
		Edits: []Edit{{"internal/sqlgen.ClaimJobs", `
                  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                ORDER BY`, `
                ORDER BY`}},
		Checks: []Check{test("dispatcher", "TestNothingStartsPastItsDeadline", "pending attempt=0")},
	},
	{
		Name:      "success past the deadline",
		Breaks:    "an effect is committed after the instant from which on it must not be",
		Invariant: "Nothing starts, runs on or succeeds past its deadline",
		Edits: []Edit{
			{"internal/sqlgen.SettleSucceeded", `      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.tenant_id`, `      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.tenant_id`},
			{"internal/sqlgen.SettleInPlace", placeFence + `
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())`, placeFence},
		},
		Checks: []Check{
			test("dispatcher", "TestSuccessPastTheDeadlineIsRefused/Complete", "want ErrLeaseLost"),
			test("dispatcher", "TestSuccessPastTheDeadlineIsRefused/returning_nil", "succeeded from running"),
		},
	},
	{
		Name:      "the epoch stays when a job is closed",
		Breaks:    "a worker whose job was expired or cancelled is still its owner by the fence's rule",
		Invariant: "One live lease",
		Edits:     []Edit{{"migrations.outbox.close_jobs", "epoch + 1,", "epoch,"}},
		Checks: []Check{
			test("reaper", "TestEveryOpenJobExpiresAtItsDeadline", "expired from"),
			test("operator", "TestCancelIsThreeWay", "epoch = "),
		},
	},
	{
		Name:      "a cancelled job is tried again",
		Breaks:    "a failure that races with the request puts the job back, and it runs once more",
		Invariant: "Cancelled is not tried again",
		Edits: []Edit{
			{"internal/sqlgen.SettleUnfinished", "      AND jobs.cancel_requested_at IS NULL\n", ""},
			{"internal/sqlgen.SettleUnfinished", "    SET status             = input.status,\n", "    SET cancel_requested_at = NULL, status = input.status,\n"},
		},
		Checks: []Check{test("operator", "TestCancelRacesWithWhateverHappensToTheJob", "want running")},
	},
	{
		Name:      "nobody looks for cancellations",
		Breaks:    "a handler goes on for as long as it likes when nobody is notified",
		Invariant: "Cancelled is not tried again",
		Edits:     []Edit{{"dispatcher/internal/lease.Keeper.WatchCancellations", "			return\n		}\n		looked = now\n", "			return\n		}\n		if looked = now; true {\n			return\n		}\n"}},
		Checks:    []Check{test("dispatcher", "TestACancelledHandlerIsStopped", "in vain for the cancellation")},
	},
	{
		Name:      "deadlines of jobs that are done are read again and again",
		Breaks:    "under a held snapshot each look for the next deadline takes longer than the one before",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"internal/sqlgen.ExpireLeases", "          AND jobs.deadline <= statement_timestamp() + $3::interval\n", "          AND (jobs.deadline <= statement_timestamp() + $3::interval OR jobs.id IS NOT NULL)\n"}},
		Checks:    []Check{test("reaper", "TestAHeldSnapshotDoesNotSlowDeadlinesDown", "as if it read them all")},
	},
	{
		Name:      "what waits to be started is not asked for",
		Breaks:    "a job that is cancelled while it waits for the rest of its batch is started",
		Invariant: "Cancelled is not tried again",
		Edits:     []Edit{{"dispatcher/internal/lease.Lease.age", `waited >= least {`, `false && waited >= least {`}},
		Checks:    []Check{test("dispatcher", "TestAJobCancelledBeforeItStartsIsNotStarted", `want "cancelled attempt=1`)},
	},
}
