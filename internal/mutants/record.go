package mutants

var record = []Mutant{
	{
		Name:      "no epoch in reports",
		Breaks:    "a worker that lost its lease reports progress of its replacement's job",
		Invariant: "Fenced",
		Edits: []Edit{{"internal/sqlgen.RecordReports", `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch` + joinStart + `
    FOR KEY SHARE`, `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id])
    FOR KEY SHARE`}},
		Checks: []Check{test("dispatcher", "TestFence/root/report_after_claimed_by_another", "took effect = true")},
	},
	{
		Name:      "no lock on the job whose reports are stored",
		Breaks:    "a job is taken over while an earlier worker's report is on its way",
		Invariant: "Fenced",
		Edits:     []Edit{{"internal/sqlgen.RecordReports", "\n    FOR KEY SHARE SKIP LOCKED", ""}},
		Checks:    []Check{test("dispatcher", "TestNobodyTakesAJobWhileItsReportIsStored", "want nothing")},
	},
	{
		Name:      "no epoch in the memory of a step",
		Breaks:    "a worker that lost its lease has its step remembered",
		Invariant: "Fenced",
		Edits: []Edit{{"internal/sqlgen.RecordStep", `    WHERE jobs.id = $1
      AND jobs.epoch = $2
      AND coalesce($3::timestamptz, jobs.started_at) = jobs.started_at
    FOR UPDATE`, `    WHERE jobs.id = $1 AND $2::bigint IS NOT NULL AND $3::timestamptz IS NOT NULL
    FOR UPDATE`}},
		Checks: []Check{
			test("dispatcher", "TestFence/root/remember_a_step_after_claimed_by_another", "took effect = true"),
			test("dispatcher", "TestAZombiesStepIsNotRemembered/in_a_transaction", "the zombie's step = "),
		},
	},
	{
		Name:      "a statement that arrives late wins",
		Breaks:    "an old checkpoint replaces a newer one that was stored for sure",
		Invariant: "The last report is kept",
		Edits: []Edit{{
			"internal/sqlgen.RecordReports", `WHERE (stored.epoch, stored.revision) < (excluded.epoch, excluded.revision)`,
			`WHERE true`,
		}},
		Checks: []Check{test("dispatcher", "TestALateStatementChangesNothing", "after revision 1 the progress is")},
	},
	{
		Name:      "an outcome does not wait for the last report",
		Breaks:    "what a handler reports just before it returns is refused: its job is closed",
		Invariant: "The last report is kept",
		Edits:     []Edit{{"dispatcher/internal/report.Reports.End", `left = a.hasLeft()`, `left = false`}},
		Checks:    []Check{test("dispatcher", "TestReportsAreCoalescedAndTheLastOneIsKept", "progress = ")},
	},
	{
		Name:      "each attempt runs every step",
		Breaks:    "nobody asks for what an earlier attempt has stored",
		Invariant: "A remembered step does not run again",
		Edits:     []Edit{{"dispatcher/internal/report.Step.mayBeStored", `return s.again || s.job.Epoch != 1`, `return s.again`}},
		Checks:    []Check{test("dispatcher", "TestAStepRunsOnceAndIsRemembered", "fetched ")},
	},
	{
		Name:      "a commit whose answer was lost is forgotten",
		Breaks:    "a step that is tried again within its attempt makes its effect twice",
		Invariant: "A remembered step does not run again",
		Edits:     []Edit{{"dispatcher/internal/report.Step.mayBeStored", `return s.again || s.job.Epoch != 1`, `return s.job.Epoch != 1`}},
		Checks:    []Check{test("dispatcher", "TestACommitWhoseAnswerIsLostIsNotMadeTwice", "remembered already")},
	},
}
