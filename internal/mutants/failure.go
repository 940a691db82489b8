package mutants

var failed = []Mutant{
	{
		Name:      "an outage without end",
		Breaks:    "a dependency that never comes back keeps its jobs running into it for ever",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"internal/sqlgen.SettleUnavailable", `found.since > statement_timestamp() - found.outage_limit AS spared`, `true AS spared`}},
		Checks:    []Check{test("dispatcher", "TestAnOutageHasALimit/beyond_the_limit", "the job is")},
	},
	{
		Name:      "an outage spends attempts",
		Breaks:    "a dependency that is away for an hour kills every job that needs it",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"internal/sqlgen.SettleUnavailable", `CASE WHEN judged.spared THEN jobs.attempt - 1 ELSE jobs.attempt END`, `jobs.attempt`}},
		Checks:    []Check{test("dispatcher", "TestAnOutageSpendsNoAttempt", "an outage spends none")},
	},
	{
		Name:      "an outage begins anew each time",
		Breaks:    "the limit is never reached",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"internal/sqlgen.SettleUnavailable", `CASE WHEN judged.spared OR judged.status = 'retrying' THEN judged.since END`, `statement_timestamp()`}},
		Checks:    []Check{test("dispatcher", "TestALongOutageReachesItsLimit", "began anew")},
	},
	{
		Name:      "a receiver says when every attempt is made",
		Breaks:    "a 429 with a Retry-After of 0 uses up all attempts within a second",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"relay/webhook.judge", `return dispatcher.RetryAtLeast(wait, failed)`, `return dispatcher.RetryAfter(wait, failed)`}},
		Checks:    []Check{test("relay/webhook", "TestE6ARetryAfterIsNoShorterThanThePolicysWait", "want another attempt after")},
	},
	{
		Name:      "a body that never ends keeps its worker",
		Breaks:    "as many such answers as there are workers stop the queue",
		Invariant: "Deaths are bounded",
		Edits:     []Edit{{"relay/webhook.hook.exchange", `	defer time.AfterFunc(h.bodyTime, hangUp).Stop()`, `	_ = h.bodyTime`}},
		Checks:    []Check{test("relay/webhook", "TestE6ABodyThatNeverEndsHoldsNobody", "until the attempt's time was over")},
	},
	{
		Name:      "a panic with nil is no panic",
		Breaks:    "a handler that panics with nil has succeeded, where GODEBUG says panicnil=1",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"internal/outcome.Catch", `if value := recover(); !returned {`, `if value := recover(); value != nil && !returned {`}},
		Checks:    []Check{test("memory", "TestOutcomesMeanWhatTheyMeanInADispatcher", "panic")},
	},
	{
		Name:      "each job finds out about an outage for itself",
		Breaks:    "twenty thousand jobs run into the same dead host, again and again",
		Invariant: "An outage is quiet",
		Edits:     []Edit{{"internal/outage.opensAfter", `opensAfter = 5`, `opensAfter = 1 << 30`}},
		Checks: []Check{
			row("D12", "claims during the outage"),
			test("dispatcher", "TestWhatIsClaimedAheadGoesBackInAnOutage", "waited"),
		},
	},
	{
		Name:      "what is claimed ahead runs into the outage",
		Breaks:    "thousands of jobs in the buffer are tried though the first few have found the host away",
		Invariant: "An outage is quiet",
		Edits:     []Edit{{"dispatcher.workers.mayRun", `	return ok`, `	return ok || true`}},
		Checks:    []Check{test("dispatcher", "TestWhatIsClaimedAheadGoesBackInAnOutage", "were tried after the host had gone")},
	},
	{
		Name:      "a kind that is back goes on from where the others are",
		Breaks:    "what claims have passed by in an outage waits for a look from the front, which is seldom",
		Invariant: "An outage is quiet",
		Edits: []Edit{{"dispatcher.loop.probeKinds", `		l.sched.StartFromFront()
`, ``}},
		Checks: []Check{test("dispatcher", "TestWhatWasPassedByRunsWhenItsKindIsBack", "two minutes after the kind was back")},
	},
	{
		Name:      "a dead target stops the kind",
		Breaks:    "one customer's dead webhook holds up those of all others",
		Invariant: "An outage is quiet",
		Edits:     []Edit{{"dispatcher/internal/circuit.findingOf", `unavailable.OfTarget`, `unavailable.OfTarget && false`}},
		Checks:    []Check{test("dispatcher", "TestATargetIsAwayForItsOwnJobs", "all of the other targets run")},
	},
	{
		Name:      "an act that nobody hears of",
		Breaks:    "a retried job has no row in the audit",
		Invariant: "No act without its row in the audit",
		Edits: []Edit{{"internal/sqlgen.RetryJob", `    JOIN found ON found.id = moved.id
)`, `    JOIN found ON found.id = moved.id AND false
)`}},
		Checks: []Check{test("operator", "TestEveryActIsRecorded", "audit (-want +got)")},
	},
	{
		Name:      "an act on what was listed, whatever happened since",
		Breaks:    "a job that was retried and failed again between the look and the act is dismissed unseen",
		Invariant: "A replay moves a dead letter once",
		Edits: []Edit{{"internal/sqlgen.DismissJobs", `
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch`, `
    FROM input
    JOIN outbox.jobs ON jobs.id = input.id`}},
		Checks: []Check{test("operator", "TestWhatChangedMeanwhileIsPassedOver", "want one done and one passed over")},
	},
	{
		Name:      "a replay without a beginning",
		Breaks:    "a replay that is begun again replays what it had replayed and failed again",
		Invariant: "A replay moves a dead letter once",
		Edits:     []Edit{{"operator.Operator.begin", `f.FailedUntil = now.Time`, `_ = now`}},
		Checks:    []Check{test("operator", "TestAReplayThatWasBrokenOffGoesOn", "want 200 matched")},
	},
	{
		Name:      "keys stay when their day goes",
		Breaks:    "a repeat returns the id of a job that was removed long ago",
		Invariant: "An idempotency key lives as long as its job",
		Edits:     []Edit{{"reaper.historyTrimmer.freeKeys", `if err != nil || !any {`, `if err != nil || any {`}},
		Checks:    []Check{test("reaper", "TestAnIdempotencyKeyLivesAsLongAsItsJob", "keys without a job")},
	},
	{
		Name:      "probes that never grow rare",
		Breaks:    "a host that is away for a day is asked every few seconds",
		Invariant: "An outage is quiet",
		Edits:     []Edit{{"internal/outage.Circuit.Probe", `max(c.wait.Next(), min(now.Sub(c.since)/longOutage, longestGap))`, `c.wait.Next()`}},
		Checks:    []Check{test("dispatcher", "TestProbesOfAnOutageGrowRare", "jobs were tried, want")},
	},
}
