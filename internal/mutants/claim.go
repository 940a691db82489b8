package mutants

// commits are bugs of claims by the transaction that stores the job.
var commits = []Mutant{
	{
		Name:      "a commit claims from a paused queue",
		Breaks:    "jobs of a queue that an operator has stopped start, if the program that stores them works them, too",
		Invariant: "A queue's limits hold across all processes",
		Edits: []Edit{{"migrations.outbox.enqueue_claimed", `
            WHERE NOT EXISTS (
                SELECT FROM outbox.queues
                WHERE queues.queue = in_queue AND (queues.paused_at IS NOT NULL OR queues.limited))`, ``}},
		Checks: []Check{test("dispatcher", "TestWhatACommitDoesNotClaim", "queue: 0 stored and not claimed")},
	},
	{
		Name:      "an attempt of a job that no disk has",
		Breaks:    "a crash of the server undoes a job whose effect has begun",
		Invariant: "Atomic",
		Edits:     []Edit{{"migrations.outbox.enqueue_claimed", `current_setting('synchronous_commit') <> 'off'`, `true`}},
		Checks:    []Check{test("dispatcher", "TestWhatACommitDoesNotClaim", "a job without waiting for disk: 0 stored and not claimed")},
	},
	{
		Name:      "a claim of a transaction that looks back",
		Breaks:    "jobs of a queue that has just been paused start",
		Invariant: "A queue's limits hold across all processes",
		Edits:     []Edit{{"migrations.outbox.enqueue_claimed", `current_setting('transaction_isolation') = 'read committed'`, `true`}},
		Checks:    []Check{test("dispatcher", "TestWhatACommitDoesNotClaim", "a job in an older snapshot: 0 stored and not claimed")},
	},
	{
		Name:      "a claim that aborts the transaction",
		Breaks:    "who may only enqueue cannot, in a program that has a dispatcher",
		Invariant: "Atomic",
		Edits:     []Edit{{"migrations.outbox.enqueue_claimed", `EXCEPTION WHEN OTHERS THEN`, `EXCEPTION WHEN division_by_zero THEN`}},
		Checks:    []Check{test("dispatcher", "TestAFailedClaimLeavesTheTransactionAlone", "want the job stored")},
	},
	{
		Name:      "a claim in vain tells nobody",
		Breaks:    "a job that its commit was to claim and did not waits for a poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"migrations.outbox.enqueue_claimed", `IF notify THEN`, `IF false THEN`}},
		Checks:    []Check{test("dispatcher", "TestWhatIsNotClaimedByItsCommitWakes", "0 notifications of a job of a paused queue")},
	},
	{
		Name:      "a refusal that nobody reads",
		Breaks:    "a commit says that a job is stored which the database has refused",
		Invariant: "Atomic",
		Edits: []Edit{{"outbox.queued.read", `Refused(err) {
		return err`, `Refused(err) {
		return nil`}},
		Checks: []Check{test("dispatcher", "TestARefusedCommitStartsNothing", `want "enqueue probe: "`)},
	},
	{
		Name:      "an attempt before the commit is known",
		Breaks:    "a job of a transaction that was rolled back has an effect",
		Invariant: "Atomic",
		Edits: []Edit{{"outbox.producerTx.Commit", `		own.Failed(!pgsession.ChangedNothing(err))
`, `		started = own.Committed() && !pgsession.ChangedNothing(err)
`}},
		Checks: []Check{test("dispatcher", "TestARefusedCommitStartsNothing", "ran, and")},
	},
	{
		Name:      "a commit without an answer is forgotten",
		Breaks:    "its job waits for a lease to lapse that nobody uses",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.reserved.Failed", `r.release(mayHaveCommitted)`, `r.release(false)`}},
		Checks: []Check{
			test("dispatcher", "TestAJobWhoseCommitHasNoAnswerIsGivenBack", "in vain for the job to run"),
			row("A3b", "expired leases of processes that were not killed"),
		},
	},
	{
		Name:      "a commit under way is an orphan",
		Breaks:    "a job is given back that is about to start here, and runs twice",
		Invariant: "One live lease",
		Edits:     []Edit{{"dispatcher.reserved.ask", `known = append(known, pgvalue.UUID(r.id))`, `_ = pgvalue.UUID(r.id)`}},
		Checks:    []Check{test("dispatcher", "TestWhatIsReservedForIsNoOrphan", "want what is reserved for")},
	},
	{
		Name:      "a place is kept for good",
		Breaks:    "a worker is lost with every commit that claims nothing",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.reserved.release", `r.capacity.finished(notCalled)`, `_ = notCalled`}},
		Checks:    []Check{test("dispatcher", "TestARefusedCommitStartsNothing", "the dispatcher takes no reservation")},
	},
	{
		Name:      "a stop that does not wait for the commit",
		Breaks:    "its job waits for a lease to lapse",
		Invariant: "Interrupted is not failed",
		Edits: []Edit{{"dispatcher.loop.run", `		l.reserved.close()
`, ``}},
		Checks: []Check{test("dispatcher", "TestAStopWaitsForTheCommitThatClaims", "the dispatcher did not wait")},
	},
}

var claim = []Mutant{
	{
		Name:      "no SKIP LOCKED",
		Breaks:    "a claim waits for whoever has locked one of its rows",
		Invariant: "Handlers cannot exhaust the leases' connections",
		Edits: []Edit{{"internal/sqlgen.ClaimJobs", `FOR UPDATE SKIP LOCKED
            ) AS first_due`, `FOR UPDATE
            ) AS first_due`}},
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
			{"internal/sqlgen.ClaimJobs", `WHERE jobs.ctid = ANY (ARRAY(
    SELECT taken.place`, `FROM generate_series(1, 3) AS again(n) CROSS JOIN LATERAL (
    SELECT taken.place`},
			{"internal/sqlgen.ClaimJobs", `
    LIMIT $13
))
RETURNING`, `
    LIMIT $13 + 0 * again.n
) AS due
WHERE jobs.ctid = due.place
RETURNING`},
		},
		Checks: []Check{
			test("dispatcher", "TestPlansNeverAffectMoreThanAsked", "want 7"),
			test("dispatcher", "TestPlansMadeOnTheEmptyTable", "the claim does not choose its jobs once and apart"),
			row("B5", "claims that returned more jobs than asked for"),
		},
	},
	{
		Name:      "no startup scan",
		Breaks:    "a process that starts waits for the first wake-up or poll",
		Invariant: "A notification is a hint",
		Edits: []Edit{{
			"dispatcher.loop.run", `wait := time.NewTimer(0)`,
			`wait := time.NewTimer(l.poll())`,
		}},
		Checks: []Check{
			test("dispatcher", "TestJobGoesFromEnqueueToHistory", "in vain"),
			row("C3", "seconds from a worker's start to its claim of a waiting job"),
		},
	},
	{
		Name:      "no poll",
		Breaks:    "a queue sleeps until something wakes it",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.loop.sleep", `l.sched.Sleep(now, l.pollAfter(now))`, `l.sched.Sleep(now, 24*time.Hour)`}},
		Checks: []Check{
			test("dispatcher", "TestALoopPollsForWhatNobodyAnnounces/deaf", "ran after"),
			row("C1", "jobs to be done"),
		},
	},
	{
		Name:      "watermark without full scan",
		Breaks:    "no claim looks further back than the last job claimed",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.newShareParams", `at := c.From(r.front, r.frontAt)`, `at := c.From(false, r.frontAt)`}},
		Checks: []Check{
			test("dispatcher", "TestLateCommitIsFound", "in vain: 52 jobs succeed"),
			row("C1", "still waiting for the jobs of late commits to be done"),
		},
	},
	{
		Name:      "every claim from the front",
		Breaks:    "a claim reads every dead entry that a held snapshot keeps",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.budget.allows", `return !now.Before(b.next)`, `return true`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestBudgetOfWhatFails", "allowed now, or not when the time has come")},
	},
	{
		Name:      "claims from the front as often as not",
		Breaks:    "beside a held snapshot a quarter of the time goes to reading what is dead",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.RestFactor", `RestFactor = 40`, `RestFactor = 4`}},
		Checks:    []Check{test("dispatcher", "TestClaimsBeginAtTheFrontAsOftenAsTheyMay", "claims from the front in a minute")},
	},
	{
		Name:      "one slow statement is believed",
		Breaks:    "after a moment in which the machine stood still nobody looks for what was committed late, forty times as long",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.budget.spend", `spent := min(cost, b.last)`, `spent := cost`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestBudget", "one that was held up: the next one waits")},
	},
	{
		Name:      "an outage is an expensive statement",
		Breaks:    "after some seconds without a database nobody looks for minutes for what was committed late, nor for new tenants",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.budget.fail", `if unrelated {`, `if unrelated && false {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestBudgetOfWhatFails", "in an outage: the next one waits")},
	},
	{
		Name:      "a failed statement is forgiven in any case",
		Breaks:    "a claim that its deadline cuts off is sent again and again",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.budget.fail", `if unrelated {`, `if true {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestBudgetOfWhatFails", "two: the next one waits")},
	},
	{
		Name:      "an answer that takes long is an expensive one",
		Breaks:    "with a slow disk or network few claims look for what was committed late, though none is held up by that",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.expected.of", `max(e.perJob*time.Duration(jobs), e.answer)`, `e.perJob*time.Duration(jobs)`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestExpected", "want the answer's 5ms")},
	},
	{
		Name:      "what goes back during a stop is told to nobody",
		Breaks:    "what a stop cuts off, or is to be tried again, waits for a poll of another process",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.reporter.needsNotify", `return a.outcome.KeepDue || !r.phase.isClaiming()`, `return false`}},
		Checks:    []Check{test("dispatcher", "TestOthersAreNotifiedOfWhatGoesBack", "were not told: the job goes back")},
	},
	{
		Name:      "unknown kinds are claimed",
		Breaks:    "a claim takes jobs that this process has no handler for",
		Invariant: "Unknown kinds are left alone",
		Edits: []Edit{{
			"internal/sqlgen.ClaimJobs", `AND jobs.kind = ANY ($7::text[])
                  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                ORDER BY`, `AND (jobs.kind = ANY ($7::text[]) OR true)
                  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                ORDER BY`,
		}},
		Checks: []Check{test("dispatcher", "TestUnknownKindsAreLeftAlone", "in vain: the known ones succeed")},
	},
	{
		Name:      "orphans are kept",
		Breaks:    "jobs of a claim whose answer was lost wait for their leases to lapse",
		Invariant: "Nothing lost",
		Edits: []Edit{
			{"dispatcher.loop.run", `answers := l.returnOrphans(ctx) == nil`, `answers := true`},
			{"dispatcher.loop.giveBack", `if l.reserved.mayHaveOrphans(now) {`, `if l.reserved.mayHaveOrphans(now) && false {`},
		},
		Checks: []Check{test("dispatcher", "TestJobsOfALostAnswerAreGivenBack", "in vain for the job to run")},
	},
	{
		Name:      "orphans are looked for once",
		Breaks:    "a claim that commits after that look keeps its jobs until the leases lapse",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.loop.giveBack", `if l.reserved.mayHaveOrphans(now) {`, `if l.reserved.mayHaveOrphans(now) && false {`}},
		Checks:    []Check{test("dispatcher", "TestJobsOfAClaimThatCommitsLateAreGivenBack", "in vain: 1 jobs succeed")},
	},
	{
		Name:      "a stop does not look for orphans",
		Breaks:    "jobs of a claim whose answer was lost during a stop wait for their leases, as if the worker had died",
		Invariant: "Interrupted is not failed",
		Edits: []Edit{{"dispatcher.loop.run", `		if l.reserved.mayHaveOrphans(time.Now()) {
			_ = l.returnOrphans(l.waiting)`, `		{`}},
		Checks: []Check{test("dispatcher", "TestAStopGivesBackTheJobsOfALostAnswer", "want \"pending attempt=0 epoch=2")},
	},
	{
		Name:      "the first large job goes back",
		Breaks:    "a job beyond the bound is claimed and given back for ever",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.claims.read", `b.size > 2*c.claimBytes && len(b.claimed) > 1 {`, `b.size > 2*c.claimBytes {`}},
		Checks:    []Check{test("dispatcher", "TestOfTooLargeAnAnswerTheFirstJobsAreKept/a_huge_one$", "goes back: true")},
	},
	{
		Name:      "one priority a survey",
		Breaks:    "a claim begins with the second most urgent job",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"internal/sqlgen.SurveyQueue", `WHERE new_level.n < $4::integer`, `WHERE false`}},
		Checks:    []Check{test("dispatcher", "TestMostUrgentFirst", "order of the starts")},
	},
	{
		Name:      "as many flows as one survey finds",
		Breaks:    "where there are hundreds of priorities a claim begins with one that is not the most urgent",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.SurveyDue", `case s.state >= incomplete:`, `case s.state == noSurvey:`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestASurveyTellsHowLongToSleep", "as many priorities were found")},
	},
	{
		Name:      "what has no cursor is not looked for",
		Breaks:    "a tenant or a priority that the dispatcher has not seen before waits for ever",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher.loop.survey", `if coversGaps {`, `if coversGaps && false {`}},
		Checks: []Check{
			test("dispatcher", "TestEveryPriorityIsServed", "in vain"),
			test("dispatcher", "TestEveryTenantIsServed", "in vain: what is due is done"),
		},
	},
	{
		Name:      "a search that was too expensive is not repeated",
		Breaks:    "the first job of a tenant waits for a poll, although the snapshot has gone that made the search for it expensive",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.SurveyDue", `return s.state > upToDate || !s.gapsCovered && s.gapBudget.allows(now)`, `return s.state > upToDate`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestWhatIsTooExpensiveIsNotForgotten", "no search when it is affordable")},
	},
	{
		Name:      "a wake-up marks nothing",
		Breaks:    "what was committed late waits for a poll, though it was notified",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"dispatcher/internal/scheduler.Scheduler.Woken", `	s.plain.unsure()
	s.keyed.unsure()
`, ``}},
		Checks: []Check{test("dispatcher", "TestLateCommitIsFound", "in vain: 52 jobs succeed")},
	},
	{
		Name:      "a busy queue never polls",
		Breaks:    "a job that was committed late, and that nobody announces, waits for as long as the queue is busy with others",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.PollAfter", `return max(s.looked.Add(every).Sub(now), 0)`, `return every`}},
		Checks:    []Check{test("dispatcher", "TestABusyLoopPollsForWhatWasCommittedLate", "want a poll after it came")},
	},
	{
		Name:      "a claim from the front looks at due flows only",
		Breaks:    "what lies before a cursor waits for as long as another flow has a backlog, while somebody holds a snapshot",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.waiting", `if cs.behind && cs.front.allows(now) {`, `if cs.behind && now.IsZero() {`}},
		Checks:    []Check{test("dispatcher", "TestAClaimFromTheFrontLooksAtEveryFlow", "it was found after")},
	},
	{
		Name:      "a cursor passes what nobody has seen",
		Breaks:    "a job that was committed late is passed by, because a claim that began behind it found nothing",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Cursor.nothingLeft", `if front && since.Valid {`, `if since.Valid {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestACursorPassesWhatIsNotForUs", "has passed jobs that it has not seen")},
	},
	{
		Name:      "a worker that becomes free says nothing",
		Breaks:    "the next job waits for a poll beside a free worker",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.capacity.finished", `c.RoomMade()`, `_ = c`}},
		Checks:    []Check{test("dispatcher", "TestAQueueRunsAsManyJobsAsItHasWorkers", "in vain")},
	},
	{
		Name:      "a stale buffer is kept",
		Breaks:    "jobs that were fetched ahead wait behind one that takes long, though another process has workers",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.workers.giveBackStale", `now.Add(-staleAfter)`, `now.Add(-time.Hour)`}},
		Checks:    []Check{test("dispatcher", "TestStaleBufferGoesBack", "jobs are in hand and")},
	},
	{
		Name:      "a loop that forgets when the next job is due",
		Breaks:    "a job that is due later waits for the poll",
		Invariant: "The database's clock decides",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Sleep", `until(c.next.Sub(now))`, `_ = c`}},
		Checks:    []Check{test("dispatcher", "TestALoopWakesWhenAJobIsDue", "ran map[]")},
	},
}
