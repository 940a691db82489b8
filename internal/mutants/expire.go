package mutants

var expire = []Mutant{
	{
		Name:      "reaper ignores max attempts",
		Breaks:    "a job that kills its workers is started again and again",
		Invariant: "Deaths are bounded",
		Edits: []Edit{{"internal/sqlgen.ExpireLeases", `            WHEN judged.attempt >= judged.max_attempts AND NOT judged.outage THEN 'dead'
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
			"internal/sqlgen.ExpireLeases", `(lapsed.started_at < greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())) AS outage`,
			`false AS outage`,
		}},
		Checks: []Check{test("reaper", "TestWhatBecomesOfAJobWhoseLeaseLapsed/an_outage", "want retrying, 0, 1")},
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
			test("dispatcher", "TestFence/Guard_after_reaped", "took effect = true"),
		},
	},
	{
		Name:      "reaper waits for locked rows",
		Breaks:    "one handler's open transaction keeps every lapsed lease from being taken away",
		Invariant: "Nothing lost",
		Edits: []Edit{{"internal/sqlgen.ExpireLeases", `    LIMIT $7
    FOR UPDATE SKIP LOCKED`, `    LIMIT $7
    FOR UPDATE`}},
		Checks: []Check{test("reaper", "TestALockedRowIsSkippedAndTheOthersAreNot", "lock timeout")},
	},
	{
		Name:      "reaper always sweeps",
		Breaks:    "each pass over the leases walks over every dead entry that a held snapshot keeps",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"reaper.scan.spans", `if affordable && s.slice == 0 {`, `if true {`}},
		Checks:    []Check{test("reaper", "TestADearSweepTakesATenthOfTheTimeAndStillCoversEverything", "want a tenth")},
	},
}
