package mutants

const (
	claimSQL = "internal/sqlgen/claim.sql.go"
	claimGo  = "dispatcher/claim.go"
	queueGo  = "dispatcher/queue.go"
	scanGo   = "dispatcher/scan.go"
)

var claim = []Mutant{
	{
		Name:      "no SKIP LOCKED",
		Breaks:    "a claim waits for whoever has locked one of its rows",
		Invariant: "Handlers cannot exhaust the leases' connections",
		Edits: []Edit{{claimSQL, `        LIMIT $8
        FOR UPDATE SKIP LOCKED
    ) AS candidate`, `        LIMIT $8
        FOR UPDATE
    ) AS candidate`}},
		Checks: []Check{
			test("dispatcher", "TestAClaimDoesNotWaitForAnother", "lock timeout"),
			row("B5", "claims that waited for a locked job"),
		},
	},
	{
		Name:      "sub-select claim",
		Breaks:    "the jobs are chosen in a sub-select, which some plans carry out once a row",
		Invariant: "A claim takes no more than asked",
		Edits: []Edit{
			{claimSQL, `WHERE jobs.ctid = ANY (ARRAY(
    SELECT candidate.place`, `FROM (
    SELECT candidate.place`},
			{claimSQL, `
    LIMIT $8
))
RETURNING`, `
    LIMIT $8
) AS due
WHERE jobs.ctid = due.place
RETURNING`},
		},
		Checks: []Check{
			test("dispatcher", "TestPlansNeverAffectMoreThanAsked", "want 7"),
			test("dispatcher", "TestPlansMadeOnTheEmptyTable", "the claim does not choose its jobs once and apart"),
			row("B5", "over-claims: more jobs than asked for"),
		},
	},
	{
		Name:      "no startup scan",
		Breaks:    "a process that starts waits for the first wake-up or poll",
		Invariant: "A notification is a hint",
		Edits: []Edit{{
			queueGo, `wait := time.NewTimer(0) // the startup scan`,
			`wait := time.NewTimer(q.pollInterval())`,
		}},
		Checks: []Check{
			test("dispatcher", "TestJobGoesFromEnqueueToHistory", "in vain"),
			row("C3", "seconds from a worker's start until it claims what was waiting"),
		},
	},
	{
		Name:      "no poll",
		Breaks:    "a queue sleeps until something wakes it",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{claimGo, `sleep = q.pollInterval()`, `sleep = 24 * time.Hour`}},
		Checks: []Check{
			test("dispatcher", "TestPollFindsWhatNobodyAnnounced", "in vain: claims are sent"),
			row("C1", "jobs to be done"),
		},
	},
	{
		Name:      "watermark without full scan",
		Breaks:    "no claim looks further back than some seconds before the last job claimed",
		Invariant: "Nothing lost",
		Edits:     []Edit{{scanGo, `for d := full; d < near; d++ {`, `for d := overlap; d < near; d++ {`}},
		Checks: []Check{
			test("dispatcher", "TestLateCommitIsFound", "in vain: 52 jobs succeed"),
			row("C1", "still waiting for the jobs of late commits to be done"),
		},
	},
	{
		Name:      "every claim from the front",
		Breaks:    "a claim walks over every dead entry that a held snapshot keeps",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{scanGo, `if !now.Before(s.paid[d]) {`, `if d == full {`}},
		Checks:    []Check{test("dispatcher", "TestScanDepthBudget", "an expensive full scan is followed by another")},
	},
	{
		Name:      "unknown kinds are claimed",
		Breaks:    "a claim takes jobs that this process has no handler for",
		Invariant: "Unknown kinds are left alone",
		Edits: []Edit{{
			claimSQL, `AND jobs.kind = ANY ($7::text[])`,
			`AND (jobs.kind = ANY ($7::text[]) OR true)`,
		}},
		Checks: []Check{test("dispatcher", "TestUnknownKindsAreLeftAlone", "in vain: the known ones succeed")},
	},
	{
		Name:      "orphans are kept",
		Breaks:    "jobs of a claim whose answer was lost wait for their leases to lapse",
		Invariant: "Nothing lost",
		Edits: []Edit{
			{queueGo, `			q.returnOrphans(ctx)
			next, err`, `			next, err`},
			{queueGo, `if now.Before(q.uncertain) {`, `if false {`},
		},
		Checks: []Check{test("dispatcher", "TestJobsOfALostAnswerAreGivenBack", "in vain for the job to run")},
	},
	{
		Name:      "orphans are looked for once",
		Breaks:    "a claim that commits after that look keeps its jobs until the leases lapse",
		Invariant: "Nothing lost",
		Edits:     []Edit{{queueGo, `if now.Before(q.uncertain) {`, `if false {`}},
		Checks:    []Check{test("dispatcher", "TestJobsOfAClaimThatCommitsLateAreGivenBack", "in vain: 1 jobs succeed")},
	},
	{
		Name:      "a stop does not look for orphans",
		Breaks:    "jobs of a claim whose answer was lost during a stop wait for their leases, as if the worker had died",
		Invariant: "Interrupted is not failed",
		Edits: []Edit{{queueGo, `		if time.Now().Before(q.uncertain) {
			q.returnOrphans(context.WithoutCancel(ctx))
		}
`, ``}},
		Checks: []Check{test("dispatcher", "TestAStopGivesBackTheJobsOfALostAnswer", "want \"pending attempt=0 epoch=2")},
	},
	{
		Name:      "the first large job goes back",
		Breaks:    "a job beyond the bound is claimed and given back for ever",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/read.go", `h.size > 2*maxClaimBytes && len(h.claimed) > 1 {`, `h.size > 2*maxClaimBytes {`}},
		Checks:    []Check{test("dispatcher", "TestAHugeJobRuns", "in vain: 1 jobs succeed")},
	},
	{
		Name:      "one gap a survey",
		Breaks:    "after a slow survey the lower priorities wait for the next full scan",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/claim.go", `gaps = gaps && time.Since(started) < longSurvey`, `gaps = false`}},
		Checks:    []Check{test("dispatcher", "TestSlowSurveyFindsEveryPriority", "due jobs ran within 9 s")},
	},
}
