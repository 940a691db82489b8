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
		Edits:     []Edit{{"dispatcher.pace.atOnce", `return p.ownFinds.Load() && p.producerWoke.Load()`, `return false`}},
		Checks:    []Check{test("dispatcher", "TestTheOwnProducersJobsDoNotWaitForOthers/before", "the own producer's job waited")},
	},
	{
		Name:      "own wake-ups cost nothing",
		Breaks:    "a program whose jobs are all for others asks without end",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.pace.atOnce", `return p.ownFinds.Load() && p.producerWoke.Load()`, `return p.producerWoke.Load()`}},
		Checks:    []Check{test("dispatcher", "TestOwnWakeUpsForNothingArePaced", "was answered at once")},
	},
	{
		Name:      "a retry whose answer was lost waits for the poll",
		Breaks:    "a job that is to be retried in a second starts up to 30 s later",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"dispatcher.reporter.report", `a.waker.poke() // the next start of what the earlier try has stored`, ``}},
		Checks:    []Check{test("dispatcher", "TestTheQueueLooksForARetryWhoseAnswerWasLost", "was not started again")},
	},
}
