package mutants

var wake = []Mutant{
	{
		Name:      "notify before commit",
		Breaks:    "dispatchers are woken for a job that they cannot see yet, and then wait for the poll",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"outbox.producerTx.Commit", `	own := t.reserve()
`, `	own := t.reserve()
	if t.wakes != 0 {
		t.producer.committed(t.wakes, nil)
		t.wakes = 0
	}
`}},
		Checks: []Check{
			test("outbox", "TestNobodyIsWokenWhileTheCommitIsUnderWay", "notifications before the commit"),
			row("C3", "jobs started promptly after a slow COMMIT"),
		},
	},
	{
		Name:      "no trailing edge",
		Breaks:    "the last job of a burst waits for the poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"outbox.coalescer.run", `if c.answered == c.wakes {`, `if true {`}},
		Checks:    []Check{test("outbox", "TestWakesAreCoalescedWithALeadingAndATrailingEdge/of_a_burst", "deadlock: all goroutines in bubble are blocked")},
	},
	{
		Name:      "listener without canary",
		Breaks:    "a listener that hears nothing any more believes that it does, and the dispatcher polls rarely",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"listener.session.watch", `		err := s.probe(ctx)`, `		err := ctx.Err()`}},
		Checks: []Check{
			test("listener", "TestUnlistenBehindOurBackIsNoticed", "no wake-up came"),
			test("listener", "TestCanarySentToAnotherDatabaseMeansDeaf", "gave up waiting until a canary got lost"),
		},
	},
	{
		Name:      "a listener that asks nobody",
		Breaks:    "a half-open connection is found out by the canary only, half a minute later",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"listener.session.rest", `if !s.line.heardSince(asked) {`, `if asked.IsZero() {`}},
		Checks: []Check{
			test("listener", "TestServerThatDoesNotAnswerIsGivenUp", "deaf = false"),
			row("C2", "seconds until a worker detected that its listener was deaf, worst"),
		},
	},
	{
		Name:      "a reconnect that says nothing",
		Breaks:    "what was notified while the listener was away waits for the poll",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"listener.run.listening", `		r.metrics.reconnects.Inc()
	}
	r.wakeUp()`, `		r.metrics.reconnects.Inc()
	}`}},
		Checks: []Check{test("listener", "TestTerminatedBackendIsReplacedAndTheGapAnnounced", "no wake-up came")},
	},
	{
		Name:      "a wake-up that waits for its reader",
		Breaks:    "a busy dispatcher keeps the listener from reading, which pins vacuum for the whole database",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"listener.Signal.Set", `	default:
		return false
`, ``}},
		Checks: []Check{test("listener", "TestNobodyReadsTheSignalAndTheConnectionIsStillRead", "gave up waiting until the notifications have arrived")},
	},
	{
		Name:      "the own dispatcher is not told",
		Breaks:    "a program's own jobs take the way through the database, or wait for the poll without a listener",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"internal/engine.Local.Wake", `		(*wake)()
`, `		_ = wake
`}},
		Checks: []Check{test("outbox", "TestACommitWakesTheDispatcherOfItsProcess", "woken with")},
	},
	{
		Name:      "others hold up the own producer",
		Breaks:    "notifications that find nothing have the jobs of the same program wait, too",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/wake.Pace.atOnce", `return p.OwnFinds && w.woken.Load() == Producer`, `return false`}},
		Checks:    []Check{test("dispatcher/internal/wake", "TestTheOwnProducersJobsDoNotWaitForOthers/before", "the own producer's job waited")},
	},
	{
		Name:      "own wake-ups cost nothing",
		Breaks:    "a program whose jobs are all for others asks without end",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/wake.Pace.atOnce", `return p.OwnFinds && w.woken.Load() == Producer`, `return w.woken.Load() == Producer`}},
		Checks:    []Check{test("dispatcher/internal/wake", "TestOwnWakeUpsForNothingArePaced", "was answered at once")},
	},
	{
		Name:      "a retry whose answer was lost waits for the poll",
		Breaks:    "a job that is to be retried in a second starts up to 30 s later",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.reporter.report", `a.capacity.Poke() // the next start of what the earlier try has stored`, ``}},
		Checks:    []Check{test("dispatcher", "TestTheQueueLooksForARetryWhoseAnswerWasLost", "was not started again")},
	},
	{
		Name:      "nobody asks for a job that may be locked",
		Breaks:    "a job whose row is locked when the job becomes due, by an act that is rolled back, waits for the poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Claimed", `n == 0 && c.state == due)`, `false)`}},
		Checks: []Check{
			test("dispatcher/internal/scheduler", "TestWhatMayBeLockedIsAskedFor", "the next survey asks about []"),
			test("dispatcher", "TestAJobThatIsLockedWhenItIsDueStartsSoonAfter", "0 jobs have succeeded, want the one that was locked"),
		},
	},
	{
		Name:      "another job makes a locked one be forgotten",
		Breaks:    "a locked job waits for the poll if a claim of its tenant and priority gets a job, or a wake-up comes, before it is free",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Claimed", `c.asks != nil || c.locked > 0 || `, ``}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestWhatMayBeLockedIsAskedFor", "the next survey asks about []")},
	},
	{
		Name:      "a survey that sees no locked job",
		Breaks:    "a job whose row is locked when the job becomes due, by an act that is rolled back, waits for the poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"internal/sqlgen.SurveyQueue", `          AND jobs.run_at >= asked.run_at`, `          AND jobs.run_at < asked.run_at`}},
		Checks:    []Check{test("dispatcher", `TestAJobWhoseRowWasLockedWhenItBecameDueIsStarted/.*key_""`, "in vain: claims have passed by it")},
	},
	{
		Name:      "a pause answers for locked jobs",
		Breaks:    "a claim that gets nothing because its queue is paused moves the cursors past jobs that nobody has looked at",
		Invariant: "A held snapshot does not slow dispatch or reaping down",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.StartFromFront", `c.asks, c.searched = nil, false`, `c.searched = false`}},
		Checks:    []Check{test("dispatcher", "TestAQueueThatTurnsOutToBeLimitedIsClaimedFromTheFront", "not at the front")},
	},
	{
		Name:      "a locked job is looked for all the time",
		Breaks:    "a transaction that is forgotten costs two hundred claims a second",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher/internal/scheduler.LockedPause", `min(looks, 8)`, `min(looks, 0)`}},
		Checks:    []Check{test("dispatcher", "TestAJobThatIsLockedWhenItIsDueStartsSoonAfter", "claims while the job was locked")},
	},
	{
		Name:      "a refused settlement wakes nobody",
		Breaks:    "a job that claims have passed by because a zombie's settlement had locked it waits for the poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.reporter.report", `	if len(lost) > 0 {`, `	if false {`}},
		Checks:    []Check{test("dispatcher", "TestALostLeaseWakesEverybody", "the others are notified: false")},
	},
	{
		Name:      "a refused settlement does not wake its own process",
		Breaks:    "a process of which there is only one passes by a job that its own settlement has locked",
		Invariant: "A notification is a hint",
		Edits: []Edit{{"dispatcher.reporter.report", `			a.capacity.Poke()
			r.metrics`, `			r.metrics`}},
		Checks: []Check{test("dispatcher", "TestALostLeaseWakesEverybody", "this process looks: false")},
	},
	{
		Name:      "a step that leaves locked jobs says nothing",
		Breaks:    "due jobs that a step has locked and not acted on wait for the poll",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"operator.Operator.stepOnJobs", `if err == nil && done < len(locked) {`, `if false {`}},
		Checks:    []Check{test("operator", "TestAStepWakesTheDispatchersForWhatItLeaves", "wakes nobody")},
	},
	{
		Name:      "the sweep says nothing of a job that nobody claims",
		Breaks:    "the next job of a key whose process was killed after it had promoted the job waits for the poll",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"reaper.sweeper.sweep", `if s.waits = waits; more {`, `if s.waits = waits; false {`}},
		Checks:    []Check{test("reaper", "TestTheSweepNotifiesOfAJobThatNobodyClaims", "the sweep has notified: false, want true")},
	},
	{
		Name:      "each sweep notifies of the same key",
		Breaks:    "a job with a key that no process has a handler for wakes every process all the time",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"reaper.sweeper.sweep", `more || !s.waits[name]`, `true`}},
		Checks:    []Check{test("reaper", "TestTheSweepNotifiesOfAJobThatNobodyClaims", "the second sweep notifies again")},
	},
	{
		Name:      "a promoted job is offered to a process that cannot run it",
		Breaks:    "a job whose kind is unavailable to the process that promotes it waits for the others' poll",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher.Dispatcher.offer", ` || !q.circuits.IsAvailable(job.Kind)`, ``}},
		Checks:    []Check{test("dispatcher", "TestAPromotedJobWhoseKindIsUnavailableIsOfferedToOthers", "want others only")},
	},
}
