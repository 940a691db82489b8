package mutants

const (
	placeFence = `((jobs.id, jobs.epoch, jobs.started_at) IN (
          SELECT unnest($2::uuid[]), unnest($3::bigint[]), unnest($4::timestamptz[]))) IS TRUE`

	startFence = `
      AND coalesce(input.started_at, jobs.started_at) = jobs.started_at`
	joinStart = `
        AND coalesce(input.started_at, jobs.started_at) = jobs.started_at`
)

var settle = []Mutant{
	{
		Name:      "an outcome keeps no lease",
		Breaks:    "a job whose outcome the database does not take yet is carried out again",
		Invariant: "Fenced",
		Edits:     []Edit{{"dispatcher/internal/lease.Lease.HandlerReturned", `l.extendUntil = time.Time{}`, `_ = l.extendUntil`}},
		Checks:    []Check{test("dispatcher", "TestARefusedOutcomeKeepsItsLease", "has lapsed")},
	},
	{
		Name:      "locked rows are found out one by one",
		Breaks:    "every outcome of the process waits for a lock timeout of each locked row",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.settler.setLockedAside", `if err != nil || len(locked) == 0 {`, `if err != nil || len(locked) >= 0 {`}},
		Checks:    []Check{test("dispatcher", "TestLockedRowsDoNotHoldUpTheOthers", "in vain: the others are settled while the rows are locked")},
	},
	{
		Name:      "no epoch in settle",
		Breaks:    "a worker that lost its lease closes the job of its replacement, or sends it back",
		Invariant: "Fenced",
		Edits: []Edit{
			{"internal/sqlgen.SettleSucceeded", `      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.tenant_id`, `    RETURNING jobs.id, jobs.tenant_id`},
			{"internal/sqlgen.SettleUnfinished", `      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.epoch`, `    RETURNING jobs.id, jobs.epoch`},
			{"internal/sqlgen.SettleInPlace", placeFence, `jobs.id = ANY ($2::uuid[]) AND $3::bigint[] IS NOT NULL AND $4::timestamptz[] IS NOT NULL`},
			{"internal/sqlgen.SettleStreamed", `      AND jobs.epoch = input.epoch` + startFence + "\n", ``},
		},
		Checks: []Check{
			test("dispatcher", "TestFence/root/succeed_after_claimed_by_another", "took effect = true"),
			test("dispatcher", "TestFence/root/succeed_in_place_after_claimed_by_another", "took effect = true"),
			test("dispatcher", "TestFence/root/succeed_with_events_after_claimed_by_another", "took effect = true"),
			test("dispatcher", "TestFence/root/fail_after_claimed_by_another", "took effect = true"),
			row("B1", "refused because the lease was lost: succeed"),
		},
	},
	{
		Name:      "a settlement that scans",
		Breaks:    "planned while the queue was empty, a settlement reads every job that there is",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits: []Edit{{"internal/sqlgen.SettleSucceeded", `    WHERE jobs.id = ANY (ARRAY[input.id])
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id,`, `    WHERE jobs.id = input.id
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
    RETURNING jobs.id,`}},
		Checks: []Check{
			test("dispatcher", "TestABurstAfterAQuietTimeIsNotScanned", "settle:"),
		},
	},
	{
		Name:      "a place is believed",
		Breaks:    "whatever has come to where a claim left its job is closed in place of it",
		Invariant: "Fenced",
		Edits: []Edit{
			{"internal/sqlgen.SettleInPlace", placeFence, `(jobs.epoch IN (SELECT unnest($3::bigint[])) AND $2::uuid[] IS NOT NULL AND $4::timestamptz[] IS NOT NULL) IS TRUE`},
		},
		Checks: []Check{
			test("dispatcher", "TestWhoeverHasComeToAPlaceIsLeftAlone", "the stranger is"),
		},
	},
	{
		Name:      "a settlement in place that looks the job up",
		Breaks:    "a success costs the server a look into the primary key that it does not need",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"internal/sqlgen.SettleInPlace", `jobs.ctid = ANY ($1::tid[])`, `jobs.id = ANY ($2::uuid[]) AND $1::tid[] IS NOT NULL`}},
		Checks:    []Check{test("dispatcher", "TestPlansMadeOnTheEmptyTable", "is looked up")},
	},
	{
		Name:      "a list that waits",
		Breaks:    "a settlement and an operator's act wait for each other",
		Invariant: "Settlements wait for each other in one order",
		Edits:     []Edit{{"internal/sqlgen.SettleInPlace", `      AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL` + "\n", ``}},
		Checks:    []Check{test("dispatcher", "TestASettlementAsAListGivesWay", "deadlock detected")},
	},
	{
		Name:      "a list of which each is compared with all",
		Breaks:    "a success is a join that the server may carry out as it likes",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"internal/sqlgen.SettleInPlace", `unnest($4::timestamptz[]))) IS TRUE`, `unnest($4::timestamptz[])))`}},
		Checks:    []Check{test("dispatcher", "TestPlansMadeOnTheEmptyTable", "each is compared with each")},
	},
	{
		Name:      "what moved is lost",
		Breaks:    "a success whose job was written since its claim is not stored, and the job runs again",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.store.storeSucceeded", `		case a.stored:`, `		case a.stored, a.rowAt.Valid:`}},
		Checks:    []Check{test("dispatcher", "TestASuccessIsStoredInItsPlaceOrWhereverItIs/one_has_moved", "settled 2 jobs")},
	},
	{
		Name:      "what was stored in its place is forgotten when the rest fails",
		Breaks:    "successes that are stored are reported as lost leases",
		Invariant: "Nothing lost",
		Edits: []Edit{{"dispatcher.store.store", `	if err := settle[how](s, ctx, batch); err != nil {
`, `	for _, a := range batch {
		a.stored = false
	}
	if err := settle[how](s, ctx, batch); err != nil {
`}},
		Checks: []Check{test("dispatcher", "TestWhatIsStoredInItsPlaceIsKnownWhenTheRestFails", "SettleSucceeded CloseAttempts")},
	},
	{
		Name:      "settlements in the order in which jobs ended",
		Breaks:    "one whose leases were lost and that of the workers that have the jobs now wait for each other",
		Invariant: "Settlements wait for each other in one order",
		Edits: []Edit{
			{"dispatcher.settler.settle", `	slices.SortFunc(batch, byID)
`, `	slices.SortFunc(batch[:0], byID)
`},
		},
		Checks: []Check{test("dispatcher", "TestASettlementWaitsInTheOrderOfIDs", "deadlock detected")},
	},
	{
		Name:      "outcomes that wait though the database is back",
		Breaks:    "after an outage jobs are claimed and run for seconds without being settled, and run again if the process dies",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/health.Health.Rest", `h.recovery())`, `make(chan struct{}))`}},
		Checks:    []Check{test("dispatcher/internal/health", "TestASettlementGoesOnWhenTheDatabaseIsBack", "want 1m0s")},
	},
	{
		Name:      "follow-ups of a lost lease",
		Breaks:    "a worker that lost its lease stores follow-ups of a success that is refused",
		Invariant: "Fenced",
		Edits: []Edit{{
			"internal/sqlgen.SettleSucceededThen", `WHERE CASE WHEN parent_id IN (SELECT closed.id FROM closed) THEN true END`, `WHERE true`,
		}},
		Checks: []Check{test("dispatcher", "TestFence/root/succeed_and_follow_after_claimed_by_another", "stored before")},
	},
	{
		Name:      "follow-ups apart from their settlement",
		Breaks:    "a success whose follow-ups cannot be stored is stored without them",
		Invariant: "Atomic",
		Edits: []Edit{{"dispatcher.settlementOf", `	case a.follows:
		return successThen
`, ``}},
		Checks: []Check{test("dispatcher", "TestFollowUpsExistExactlyWhenTheSettlementDoes", "follow-ups = 0, want one")},
	},
	{
		Name:      "a refused follow-up is left out",
		Breaks:    "a job whose follow-ups cannot be stored succeeds without them, in silence",
		Invariant: "Atomic",
		Edits:     []Edit{{"dispatcher.settler.storeRefusedAgain", `store(ctx, settlementOf(a), `, `store(ctx, settlementOf(a)&^1, `}},
		Checks:    []Check{test("dispatcher", "TestASettlementWithoutItsFollowUpsIsNone/for_now", "follow-ups = 0, want one")},
	},
	{
		Name:      "synchronous_commit off",
		Breaks:    "what was claimed and settled is forgotten in a crash: a job runs twice under one epoch",
		Invariant: "Nothing lost",
		Edits: []Edit{{
			"dispatcher.openControlPool", "`SELECT octet_length('0'::bit(8000000))`",
			"`SET synchronous_commit = off`",
		}},
		Checks: []Check{
			test("dispatcher", "TestSessionIsDurable", "synchronous_commit = off"),
			test("dispatcher", "TestWhatWasAcknowledgedSurvivesACrash", "the claim"),
			row("A5", "executions that share one lease (job and epoch)"),
		},
	},
	{
		Name:      "a settlement that does not wait for the disk",
		Breaks:    "a job that was reported as succeeded runs again after a crash",
		Invariant: "Nothing lost",
		Edits: []Edit{
			{"internal/sqlgen.SettleSucceeded", `FROM done
RETURNING id`, `FROM done
WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
RETURNING id`},
			{"internal/sqlgen.SettleInPlace", placeFence, placeFence + `
      AND set_config('synchronous_commit', 'off', true) IS NOT NULL`},
		},
		Checks: []Check{test("dispatcher", "TestWhatWasAcknowledgedSurvivesACrash", "the settlement")},
	},
	{
		Name:      "given-back job keeps its attempt",
		Breaks:    "a deployment spends attempts of jobs that never started",
		Invariant: "Interrupted is not failed",
		Edits: []Edit{{
			"internal/sqlgen.SettleUnfinished", `attempt            = CASE WHEN input.status = 'pending' THEN jobs.attempt - 1 ELSE jobs.attempt END,`,
			`attempt            = jobs.attempt,`,
		}},
		Checks: []Check{
			test("dispatcher", "TestStopGivesBackWhatHadNotStarted", "jobs given back as they were = 0"),
			row("D7", "jobs that a graceful stop cost an attempt"),
		},
	},
	{
		Name:      "interrupted is failed",
		Breaks:    "a handler that a shutdown cuts off has failed",
		Invariant: "Interrupted is not failed",
		Edits: []Edit{{
			"internal/outcome.Policy.decide", `case errors.Is(cause, ErrShutdown), errors.Is(cause, outbox.ErrLeaseLost):`,
			`case errors.Is(cause, outbox.ErrLeaseLost):`,
		}},
		Checks: []Check{test("dispatcher", "TestStopCutsWhatOutlivesTheGracePeriod", "interrupted is not failed")},
	},
	{
		Name:      "history copied without deletion",
		Breaks:    "a succeeded job is in the history and stays open",
		Invariant: "Legal moves only",
		Edits: []Edit{
			{"internal/sqlgen.SettleSucceeded", `), done AS (
    DELETE FROM outbox.jobs
    USING input
`, `), done AS (
    UPDATE outbox.jobs
    SET queue = jobs.queue
    FROM input
`},
			{"internal/sqlgen.SettleInPlace", `WITH done AS (
    DELETE FROM outbox.jobs
`, `WITH done AS (
    UPDATE outbox.jobs
    SET queue = jobs.queue
`},
		},
		Checks: []Check{test("dispatcher", "TestJobGoesFromEnqueueToHistory", "invariant broken: a job is open or in the history, not both")},
	},
	{
		Name:      "Complete is believed",
		Breaks:    "a handler that called Complete and did not commit has succeeded",
		Invariant: "Atomic",
		Edits:     []Edit{{"internal/outcome.Policy.decide", `case err == nil && engine.InternalOf(job).Completed.Load():`, `case false:`}},
		Checks:    []Check{test("dispatcher", "TestCompleteThatRolledBackIsTriedAgain", "effects = 0, want 1")},
	},
	{
		Name:      "a refused row holds up its batch",
		Breaks:    "one outcome that the database refuses keeps all others from being stored",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"dispatcher.settler.store", `case len(batch) > 1 && (`, `case false && (`}},
		Checks:    []Check{test("dispatcher", "TestRefusedRowDoesNotHoldUpTheOthers", "in vain")},
	},
	{
		Name:      "a refused connection is the row's fault",
		Breaks:    "a success fails for good because the server refused a new connection for it",
		Invariant: "Nothing lost",
		Edits: []Edit{{"internal/pgsession.IsUnreachable", `	if _, ok := errors.AsType[*sessionError](err); ok {
		return true
	}
`, ``}},
		Checks: []Check{test("internal/pgsession", "TestStatesAreDistinguished", "a refusal(settle: prepare the session: claim")},
	},
	{
		Name:      "a pooler's process number is an integer",
		Breaks:    "behind a pooler half of the connections are refused",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"internal/pgsession.setAll", `$1::bigint`, `$1`}},
		Checks: []Check{
			test("internal/pgsession", "TestNothingIsSetInASharedSession", "out of range for type integer"),
		},
	},
	{
		Name:      "an outcome that waited for a lock is never amended",
		Breaks:    "a success whose follow-ups a constraint refuses after a lock stays running for as long as the process lives",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"dispatcher.settler.storeRefusedAgain", `case amend(a, err):`, `case false && amend(a, err):`}},
		Checks:    []Check{test("dispatcher", "TestAnOutcomeThatWaitedForALockMayBeUnacceptable", "in vain: all are settled")},
	},
	{
		Name:      "leases end with the last handler",
		Breaks:    "at a stop, a finished job whose row is locked runs again",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.Dispatcher.begin", `d.leases.Keep(holding)`, `d.leases.Keep(afterJobs)`}},
		Checks:    []Check{test("dispatcher", "TestLeasesAreExtendedWhileOutcomesWaitAtAStop", "the lease of a finished job has lapsed")},
	},
	{
		Name:      "the rest of a divided batch is tried after the time for tries",
		Breaks:    "Run reports unsettled jobs and leaks goroutines if the database hangs while a batch is being divided",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"dispatcher.settler.store", `if !s.store(batch[:half], how, retried) {`, `if !s.store(batch[:half], how, retried) && false {`}},
		Checks:    []Check{test("dispatcher", "TestABatchThatIsBeingDividedIsGivenUpAsAWhole", "at most")},
	},
	{
		Name:      "an error that the encoding lacks",
		Breaks:    "a failure whose text the database's encoding lacks is refused for as long as the process lives",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"dispatcher.amend", `return a.outcome.SpellInASCII()`, `return false`}},
		Checks:    []Check{test("dispatcher", "TestFailuresAreStoredInEveryEncoding/LATIN1", "in vain: every outcome is stored")},
	},
	{
		Name:      "nobody looks whether a Complete has committed",
		Breaks:    "a success whose COMMIT was not answered is told as a lost lease",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.reporter.ended", `	if len(possible) == 0 {`, `	if true {`}},
		Checks: []Check{
			test("dispatcher", "TestACompleteWhoseAnswerIsLostIsASuccess/it_has_committed", "counted as completed: 0, want 4"),
			row("A12", "log lines that say lease_lost"),
		},
	},
	{
		Name:      "whatever is refused after its deadline has expired",
		Breaks:    "a lost lease is told as the end of a job that another worker has",
		Invariant: "Nothing starts, runs on or succeeds past its deadline",
		Edits:     []Edit{{"dispatcher.reporter.report", `case status == outbox.Expired:`, `case status == outbox.Expired || mayHaveEnded(a):`}},
		Checks:    []Check{test("dispatcher", "TestAnAttemptThatIsRefusedAfterItsDeadlineIsReportedAsItEnded/another", "leases reported as lost = 0, want 1")},
	},
	{
		Name:      "nobody looks whether a reaper was faster",
		Breaks:    "a job that a reaper has expired is told as a lost lease",
		Invariant: "Nothing starts, runs on or succeeds past its deadline",
		Edits:     []Edit{{"dispatcher.mayHaveEnded", `!time.Now().Before(a.deadline)`, `time.Now().IsZero()`}},
		Checks:    []Check{test("dispatcher", "TestAnAttemptThatIsRefusedAfterItsDeadlineIsReportedAsItEnded/a_reaper", "leases reported as lost = 1, want 0")},
	},
}
