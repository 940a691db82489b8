package mutants

var expire = []Mutant{
	{
		Name:      "the server asks after two hours whether a client lives",
		Breaks:    "a handler's transaction whose machine is gone keeps its job from everybody for as long",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"internal/pgsession.afterwards", "	\"tcp_keepalives_idle\":     \"5\",\n", ""}},
		Checks:    []Check{test("internal/pgsession", "TestAClientThatVanishesIsNoticed", "want no longer than a lease")},
	},
	{
		Name:      "a transaction beside an extended lease is ended",
		Breaks:    "a handler whose own transaction is idle for long, while its worker extends the lease beside the locked row, loses its session",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits:     []Edit{{"internal/sqlgen.TerminateStuckSessions", `beside.expires_at >= statement_timestamp() - $1)`, `false)`}},
		Checks:    []Check{test("reaper", "TestATransactionOfAWorkerThatIsGoneIsEnded/extended", "want it ended: false")},
	},
	{
		Name:      "reaper ignores max attempts",
		Breaks:    "a job that kills its workers is started again and again",
		Invariant: "Deaths are bounded",
		Edits: []Edit{{"internal/sqlgen.ExpireLeases", `            WHEN judged.attempt >= judged.max_attempts THEN 'dead'
`, ``}},
		Checks: []Check{
			test("reaper", "TestWhatBecomesOfAJobWhoseLeaseLapsed/the_last_attempt", "want dead"),
			row("B2", "still waiting for the jobs with one attempt to be dead"),
		},
	},
	{
		Name:      "reaper blames jobs for an outage",
		Breaks:    "a crash of the server spends an attempt of every job that was running",
		Invariant: "Deaths are bounded",
		Edits: []Edit{{
			"internal/sqlgen.ExpireLeases", `coalesce(lapsed.started_at < greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())`,
			`coalesce(false`,
		}},
		Checks: []Check{test("reaper", "TestWhatBecomesOfAJobWhoseLeaseLapsed/an_outage", "want retrying, 0, 0")},
	},
	{
		Name:      "reaper forgets that it was blind",
		Breaks:    "a server that stands still, or a locked table, spends an attempt of every job that was running",
		Invariant: "Deaths are bounded",
		Edits: []Edit{{"reaper.outageTracker.ask", `		params.Seen, params.AwaySince = instant(s.seen), instant(s.awaySince())
`, ``}},
		// The test covers root and another tenant, with a key and without.
		Checks: []Check{test("reaper", "TestLeasesThatLapseInAnOutageCostNothing", "in it: dead attempt=1 lost=1")},
	},
	{
		Name:      "workers have no time after an outage",
		Breaks:    "a lease that lapses before its worker has found that the database is back spends an attempt",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"reaper.outageTracker.answer", `dbNow.Add(max(recoverPatience, away/2))`, `dbNow`}},
		Checks:    []Check{test("reaper", "TestLeasesThatLapseInAnOutageCostNothing", "soon after: dead attempt=1 lost=1")},
	},
	{
		Name:      "reaper takes its own pause for an outage",
		Breaks:    "a job that stops its process is never counted",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"reaper.outageTracker.awaySince", `s.seen.Add(clock.Elapsed(s.sent, s.asked))`, `s.seen.Add(0 * clock.Elapsed(s.sent, s.asked))`}},
		Checks:    []Check{test("reaper", "TestWhatIsAnOutage", "we were stopped")},
	},
	{
		Name:      "an outage counts as a lost lease",
		Breaks:    "jobs wait for up to a minute after outages, and die of many",
		Invariant: "Deaths are bounded",
		Edits: []Edit{{
			"internal/sqlgen.ExpireLeases", `jobs.lost_leases + CASE WHEN sentenced.outage THEN 0 ELSE 1 END`,
			`jobs.lost_leases + 1`,
		}},
		Checks: []Check{
			test("reaper", "TestWhatBecomesOfAJobWhoseLeaseLapsed/an_outage", "want retrying, 0, 0"),
			test("reaper", "TestLeasesThatLapseInAnOutageCostNothing", "in it: retrying attempt=0 lost=1"),
		},
	},
	{
		Name:      "reaper does not look for extensions beside the row",
		Breaks:    "a handler whose transaction outlasts the lease loses its job at the COMMIT",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits: []Edit{{
			"internal/sqlgen.ExpireLeases", `beside.expires_at > statement_timestamp())`,
			`false)`,
		}},
		Checks: []Check{
			test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_root$", "a reaper took the job"),
			test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_root,_a_key", "a reaper took the job"),
			test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_a_tenant$", "a reaper took the job"),
			test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_a_tenant,_a_key", "a reaper took the job"),
			row("B11", "jobs that succeeded on the first attempt, with their result stored"),
		},
	},
	{
		Name:      "trimming is noted with a day left",
		Breaks:    "nobody hears of a day that cannot be dropped, however long that lasts",
		Invariant: "Nothing kept beyond its retention",
		Edits:     []Edit{{"reaper.trimmer.trim", `if err != nil || wait < trimInterval/2 {`, `if err != nil {`}},
		Checks:    []Check{test("reaper", "TestADropGivesWayToAReport", "it is noted as trimmed")},
	},
	{
		Name:      "reaper keeps the epoch",
		Breaks:    "a worker whose lease was taken away still writes, until another claims the job",
		Invariant: "One live lease",
		Edits: []Edit{
			{"internal/sqlgen.ExpireLeases", `        epoch              = jobs.epoch + 1,
`, ``},
			anyMove,
		},
		Checks: []Check{
			test("reaper", "TestAZombiesOutcomeIsRefused", "the zombie still passes the guard"),
			test("dispatcher", "TestFence/root/Guard_after_reaped", "took effect = true"),
		},
	},
	{
		Name:      "reaper waits for locked rows",
		Breaks:    "one handler's open transaction keeps every lapsed lease from being taken away",
		Invariant: "Nothing lost",
		Edits: []Edit{{"internal/sqlgen.ExpireLeases", `    LIMIT $9
    FOR UPDATE SKIP LOCKED`, `    LIMIT $9
    FOR UPDATE`}},
		Checks: []Check{test("reaper", "TestALockedRowIsSkippedAndTheOthersAreNot", "lock timeout")},
	},
	{
		Name:      "a lapsed job that is refused holds up the others",
		Breaks:    "no lease is taken from a dead worker while a trigger refuses to change one job that lapsed",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"reaper.expirer.span", `if pgsession.MayBeRefusal(err) {`, `if false {`}},
		Checks:    []Check{test("reaper", "TestALapsedJobThatIsRefusedHoldsUpNoOther/retried", "poisoned")},
	},
	{
		Name:      "a job without a key parks one",
		Breaks:    "a job that has no key, and a rule of keys, is closed, or fails the pass that finds its lease lapsed",
		Invariant: "Nothing lost",
		Edits: []Edit{{
			"internal/sqlgen.ExpireLeases", `CASE WHEN jobs.key IS NOT NULL THEN jobs.on_lapse END AS on_lapse`, `jobs.on_lapse`,
		}},
		Checks: []Check{test("reaper", "TestAPlainJobWithALapsePolicyIsRetried", "want retrying 1")},
	},
	{
		Name:      "every reaper counts",
		Breaks:    "each process reads the whole table of jobs twice a minute",
		Invariant: "One process counts for all",
		Edits:     []Edit{{"internal/sqlgen.TakeTurn", `WHERE c.free_at IS NULL`, `WHERE true`}},
		Checks:    []Check{test("reaper", "TestOneOfManyReapersCounts", "10 of ten reapers have the turn")},
	},
	{
		Name:      "a count that comes late is stored",
		Breaks:    "metrics go back to what was counted by a process that stood still since",
		Invariant: "One process counts for all",
		Edits: []Edit{{"internal/sqlgen.EndSample", `
  AND chores.free_at = $4`, `
  AND $4::timestamptz IS NOT NULL`}},
		Checks: []Check{test("reaper", "TestOneOfManyReapersCounts", "1 jobs are due, want 0")},
	},
	{
		Name:      "what a paused queue has is due",
		Breaks:    "workers are added, and somebody is woken, for jobs that may not start",
		Invariant: "One process counts for all",
		Edits:     []Edit{{"internal/sqlgen.SampleDepth", `CASE WHEN rule.paused_at IS NULL THEN coalesce(open.due, 0) ELSE 0 END AS due`, `coalesce(open.due, 0) AS due`}},
		Checks:    []Check{test("reaper", "TestQueuesAreSampled", "jobs_due paused:1")},
	},
	{
		Name:      "reaper always sweeps",
		Breaks:    "each pass over the leases reads every dead entry that a held snapshot keeps",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"reaper.scan.spans", `if affordable && s.slice == 0 {`, `if true {`}},
		Checks:    []Check{test("reaper", "TestASlowSweepTakesATenthOfTheTimeAndStillCoversEverything", "want a tenth")},
	},
	{
		Name:      "a front that is too far is tried again for ever",
		Breaks:    "behind more dead entries than a claim can read, a new process starts nothing",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Front", `s.cursors(keyed).near && s.since.Valid`, `false && s.since.Valid`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestWhatClaimsDoNotReachIsSearched", "after a claim that did not end")},
	},
	{
		Name:      "what claims do not reach is not searched",
		Breaks:    "after a restart behind more dead entries than a claim can read, a backlog waits until the snapshot is released",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher.searches.next", `if len(ranges) == 0 {`, `if true {`}},
		Checks:    []Check{test("dispatcher", "TestANewProcessBehindDeadEntriesStarts", "want all")},
	},
	{
		Name:      "a claim goes on from the first job that a search has found",
		Breaks:    "a found job that another process has taken stops the claims of all tenants: the entries after it are dead",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher.newShareParams", `p.add(c.Priority, found, pgvalue.UUID(found.ID))`, `p.add(c.Priority, found, pgtype.UUID{})`}},
		Checks:    []Check{test("dispatcher", "TestAClaimLooksAtEachFoundJobByItself", "want only the found ones")},
	},
	{
		Name:      "a claim that does not end costs all its flows their positions",
		Breaks:    "one tenant's dead entries let the backlogs of all others wait for a search",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.cursors.tooMuch", `case n > 1 && tried < n:`, `case n > 1 && tried < 0:`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestTheFlowThatIsTooMuchIsFound", "trial 0")},
	},
	{
		Name:      "suspects are claimed together again",
		Breaks:    "one tenant's dead entries stop the claims of all tenants",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.cursors.apart", `i := slices.IndexFunc(s.Cursors, isSuspect)`, `i := min(slices.IndexFunc(s.Cursors, isSuspect), -1)`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestTheFlowThatIsTooMuchIsFound", "claims have failed, want one of all and one of the culprit")},
	},
	{
		Name:      "suspects have every turn",
		Breaks:    "flows whose claims the database refuses, among the suspects of a time-out, stop the others",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.cursors.apart", `if alone != nil && (cs.suspectsTurn || len(others) == 0) {`, `if alone != nil {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestSuspectsLeaveTheOthersTheirTurn", "want every second")},
	},
	{
		Name:      "flows that are cleared are suspected again",
		Breaks:    "flows whose dead entries are too many only together fail together for ever",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.cursors.tooMuch", `case n > 1 && tried < n:`, `case n > 1:`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestFlowsThatAreTooMuchTogetherAreFound", "want two")},
	},
	{
		Name:      "a found job is taken wherever it is now",
		Breaks:    "a job that another process has retried moves the cursor past the rest of a backlog",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"internal/sqlgen.ClaimJobs", `AND jobs.run_at = cursor.run_at`, ``}},
		Checks:    []Check{test("dispatcher", "TestAClaimLooksAtEachFoundJobByItself", "want only the found ones")},
	},
	{
		Name:      "what a search left out waits for the next round",
		Breaks:    "a flow whose search takes too long keeps those after it from being searched",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.NoteSearch", `c.searched, left = false, true`, `left = true`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestARoundLooksAtEveryFlow", "times in a round, want once")},
	},
	{
		Name:      "a claim that fails keeps the turn",
		Breaks:    "a job whose row the database refuses to change stops the jobs of all other tenants",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Failed", `if len(shares) == 1 {`, `if false {`}},
		Checks:    []Check{test("dispatcher", "TestARefusedClaimOfOneTenantLeavesTheOthersTheirTurn", "of the other tenants")},
	},
	{
		Name:      "a pass over the leases that does not end asks for as many again",
		Breaks:    "nobody's lease is expired while hundreds that lapsed together cannot be in time",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"reaper.expirer.pass", `e.batch = max(e.batch/8, 1)`, `e.batch = max(e.batch, 1)`}},
		Checks:    []Check{test("reaper", "TestManyLapsedLeasesAreTakenAFewAtATime", "the next statement takes 500 jobs")},
	},
	{
		Name:      "a lost lease is recorded ahead",
		Breaks:    "a job that a reaper leaves to its worker until the next statement has an attempt on record that has not ended, and the error of its worker is not recorded",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits: []Edit{{"internal/sqlgen.ExpireLeases", `    WHERE (cancel_requested_at IS NULL AND on_lapse IS DISTINCT FROM 'fail-stale')
       OR id IN (SELECT closed.id FROM closed)
`, ``}},
		Checks: []Check{test("reaper", "TestAJobThatIsLeftForTheNextStatementHasNotLostItsLease", "recorded as lost = 10, want none")},
	},
	{
		Name:      "a letter that parks its key is removed",
		Breaks:    "whoever unblocks a key finds the job gone that was to be retried before the others",
		Invariant: "Nothing kept beyond its retention",
		Edits:     []Edit{{"internal/sqlgen.TrimDeadLetters", `jobs.on_lapse = 'block' AND jobs.last_error_code`, `jobs.on_lapse = 'none' AND jobs.last_error_code`}},
		Checks:    []Check{test("reaper", "TestALetterThatParksItsKeyStaysWhileJobsWaitForIt", "want line waits")},
	},
}
