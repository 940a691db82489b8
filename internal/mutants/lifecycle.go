package mutants

// lifecycles are bugs of the stream of job changes.
var lifecycles = []Mutant{
	{
		Name:      "no event for what goes into the history",
		Breaks:    "a streamed job ends, and its stream does not",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"migrations.outbox.stream_job", "    silent := outbox.store_job_event(", "    IF TG_TABLE_NAME LIKE 'history%' THEN RETURN NEW; END IF;\n    silent := outbox.store_job_event("}},
		Checks: []Check{
			test("dispatcher", "TestEventsRebuildEveryFlow", "is rebuilt as"),
			test("internal/verify/model", "TestEventsRebuildStreamedJobs", "is rebuilt as"),
		},
	},
	{
		Name:      "a number is left out",
		Breaks:    "a consumer takes a complete stream for one with a gap",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"migrations.outbox.stream_job", `number := OLD.streamed + 1;`, `number := OLD.streamed + CASE NEW.status WHEN 'retrying' THEN 2 ELSE 1 END;`}},
		Checks:    []Check{test("dispatcher", "TestEventsRebuildEveryFlow", "events are missing")},
	},
	{
		Name:      "a retry ends the stream",
		Breaks:    "a streamed job is not streamed any more after its first failure",
		Invariant: "The stream is the job's life",
		Edits: []Edit{{"migrations.outbox.stream_job", `        number := OLD.streamed + 1;
        NEW.streamed := number;
`, `        number := OLD.streamed + 1;
        NEW.streamed := CASE NEW.status WHEN 'retrying' THEN NULL ELSE number END;
`}},
		Checks: []Check{test("dispatcher", "TestEventsRebuildEveryFlow", "has events, and is not stored")},
	},
	{
		Name:      "refused outcomes are silent",
		Breaks:    "nobody sees that a worker went on after it had lost its job",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"dispatcher.reporter.report", "\n\tr.streamRefused(lost)", "\n\t_ = lost"}},
		Checks:    []Check{test("dispatcher", "TestARefusedOutcomeIsInTheStream", "the refusal is not in the stream")},
	},
	{
		Name:      "a claim that stores no event",
		Breaks:    "jobs run, and their streams say that they wait",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"internal/sqlgen.ClaimStreamedJobs", `WHERE streamed IS NOT NULL`, `WHERE false`}},
		Checks: []Check{
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn/root", "want 10 and 30"),
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn/another_tenant", "want 10 and 30"),
			test("internal/verify/model", "TestEventsRebuildStreamedJobs", "events are missing"),
		},
	},
	{
		Name:      "a settlement that stores no event",
		Breaks:    "jobs that have ended run forever for those who read the stream",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"internal/sqlgen.SettleStreamed", `WHERE streamed IS NOT NULL`, `WHERE false`}},
		Checks: []Check{
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn", "is rebuilt as"),
			test("internal/verify/model", "TestEventsRebuildStreamedJobs", "is rebuilt as"),
		},
	},
	{
		Name:      "a transaction that is trusted with its events",
		Breaks:    "a change that follows a claim in the same transaction has no event",
		Invariant: "The stream is the job's life",
		Edits: []Edit{{
			"migrations.history_stream_closed", `current_setting('outbox.counts_events', true) IS DISTINCT FROM statement_timestamp()::text`,
			`coalesce(current_setting('outbox.counts_events', true), '') = ''`,
		}},
		Checks: []Check{
			test("dispatcher", "TestTheNextChangeOfATransactionHasItsEvent/root", "is rebuilt as"),
			test("dispatcher", "TestTheNextChangeOfATransactionHasItsEvent/another_tenant", "is rebuilt as"),
		},
	},
	{
		Name:      "a claim that counts events and stores none",
		Breaks:    "jobs run, their streams say that they wait, and a number is left out",
		Invariant: "The stream is the job's life",
		Edits: []Edit{{"internal/sqlgen.ClaimJobs", `    started_at       = statement_timestamp()
`, `    started_at       = statement_timestamp(),
    streamed         = jobs.streamed + 1
`}},
		Checks: []Check{
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn/root", "events are missing"),
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn/another_tenant", "events are missing"),
		},
	},
	{
		Name:      "a claim that stores events and does not count them",
		Breaks:    "each start is stored twice, by the statement and by the trigger",
		Invariant: "The stream is the job's life",
		Edits: []Edit{{"internal/sqlgen.ClaimStreamedJobs", `started_at       = statement_timestamp(),
        streamed         = jobs.streamed + 1
`, `started_at       = statement_timestamp()
`}},
		Checks: []Check{
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn/root", "want 10 and 30"),
			test("internal/verify/model", "TestEventsRebuildStreamedJobs", "is not its own"),
		},
	},
	{
		Name:      "a settlement that stores events and does not count them",
		Breaks:    "the row of a job that has ended has one event less than the log",
		Invariant: "The stream is the job's life",
		Edits:     []Edit{{"internal/sqlgen.SettleStreamed", `deadline, streamed + 1, queue`, `deadline, streamed, queue`}},
		Checks: []Check{
			test("dispatcher", "TestStreamedJobsHaveStatementsOfTheirOwn", "is rebuilt as"),
			test("internal/verify/model", "TestEventsRebuildStreamedJobs", "is rebuilt as"),
		},
	},
	{
		Name:      "statements of a build before are not trusted",
		Breaks:    "beside this build, a process of the build before has each of its events stored twice",
		Invariant: "A build works with its own schema and the next one's",
		Edits:     []Edit{{"migrations.outbox.stream_job", `current_setting('outbox.stores_events', true) = statement_timestamp()::text`, `false`}},
		Checks:    []Check{test("dispatcher", "TestTheStatementsOfABuildBeforeCountByTheTrigger", "want 10 and 30")},
	},
}
