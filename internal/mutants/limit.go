package mutants

var limit = []Mutant{
	{
		Name:      "a plain claim of a limited queue",
		Breaks:    "whoever has not heard of a limit yet goes on as if there were none",
		Invariant: "A queue's limits hold across all processes",
		Edits: []Edit{
			{"internal/sqlgen.ClaimJobs", `(queues.paused_at IS NOT NULL OR (queues.limited AND NOT $9::boolean))`, `(queues.paused_at IS NOT NULL OR (queues.limited AND NOT $9::boolean AND false))`},
			{"internal/sqlgen.ClaimKeyedJobs", `WHERE queues.queue = $10 AND queues.limited)`, `WHERE queues.queue = $10 AND queues.limited AND false)`},
		},
		Checks: []Check{test("dispatcher", "TestAClaimThatHasNotLookedIsRefused", "limited, looked false: 2 jobs")},
	},
	{
		Name:      "what runs is counted before the wait",
		Breaks:    "a claim that has waited for another one does not see what that has started",
		Invariant: "A queue's limits hold across all processes",
		Edits: []Edit{{"dispatcher/internal/limit.Limiter.measure", `	batch.Queue(sqlgen.HoldQueue, l.Queue)
	batch.Queue(sqlgen.MeasureQueue, l.Queue).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[sqlgen.MeasureQueueRow])
		return err
	})
`, `	batch.Queue(sqlgen.MeasureQueue, l.Queue).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[sqlgen.MeasureQueueRow])
		return err
	})
	batch.Queue(sqlgen.HoldQueue, l.Queue)
`}},
		Checks: []Check{test("dispatcher", "TestALimitedClaimLooksAfterItHasWaited", "most jobs running at once = 2, want 1")},
	},
	{
		Name:      "claims of before a limit do not count",
		Breaks:    "what a claim started that was under way when a limit was set runs beside as many as the limit allows",
		Invariant: "A queue's limits hold across all processes",
		Edits:     []Edit{{"internal/sqlgen.MeasureQueue", `interval '30 seconds'`, `interval '0'`}},
		Checks:    []Check{test("dispatcher", "TestAClaimOfBeforeTheLimitCounts", "started while the job of before the limit runs")},
	},
	{
		Name:      "a start is forgotten too early",
		Breaks:    "of the starts that are remembered together, the first one's time counts",
		Invariant: "A queue's limits hold across all processes",
		Edits:     []Edit{{"dispatcher/internal/limit.startLog.add", `if at.After(l.times[last].Time) {`, `if at.Before(l.times[last].Time) {`}},
		Checks:    []Check{test("dispatcher/internal/limit", "TestStartLogKeepsTheRate", "51 starts in")},
	},
	{
		Name:      "a limit is looked at once a minute",
		Breaks:    "room that another process made, and limits that were raised, are found when somebody wakes the queue",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/limit.Limiter.nextLook", `min(l.Poll(), l.Notice/2`, `max(l.Poll(), l.Notice/2`}},
		Checks: []Check{
			test("dispatcher", "TestLimitsChangeWhileJobsRun", "in vain"),
			test("dispatcher", "TestPauseAndResumeWithoutAWakeUp", "in vain"),
		},
	},
	{
		Name:      "what is claimed starts whatever happens",
		Breaks:    "what was claimed ahead, or gathered, starts long after its queue was paused",
		Invariant: "A queue's limits hold across all processes",
		Edits:     []Edit{{"dispatcher.workers.mayRun", `!w.pause.MayStart(a.lease.Claimed)`, `false`}},
		Checks: []Check{
			test("dispatcher", "TestNothingStartsASecondAfterAPause", "after the pause"),
			test("dispatcher", "TestABatchOfAPausedQueueGoesBack", "while the queue was paused"),
		},
	},
	{
		Name:      "cursors pass a backlog that nobody has looked at",
		Breaks:    "after a pause or a new limit, jobs that are due wait for a claim from the front, which is rationed while a snapshot is held",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher.loop.survey", `s.StartFromFront()`, `s.Woken()`}},
		Checks:    []Check{test("dispatcher", "TestAQueueThatTurnsOutToBeLimitedIsClaimedFromTheFront", "not at the front")},
	},
}
