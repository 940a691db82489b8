package mutants

var traces = []Mutant{
	{
		Name:      "a retry is its producer's child",
		Breaks:    "a trace stays open for as long as its job is tried",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"dispatcher.common.trace", `s.Fresh = job.Attempt == 1 && `, `s.Fresh = true && `}},
		Checks:    []Check{test("tracing", "TestAFirstAttemptIsAChildAndARetryATraceOfItsOwn", "the retry has the parent")},
	},
	{
		Name:      "a retry is not linked to the attempt before",
		Breaks:    "nobody finds the trace in which a job failed from the one in which it was tried again",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"dispatcher.common.trace", `s.Failed = failedSpans(ctx, attempts)`, `_ = failedSpans`}},
		Checks:    []Check{test("tracing", "TestAFirstAttemptIsAChildAndARetryATraceOfItsOwn", "want 1 and one to attempt 1")},
	},
	{
		Name:      "an outage keeps no span",
		Breaks:    "the attempt after an outage that lasted too long is linked to none before it",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"dispatcher.store.storeUnavailable", `, Traces: u.Traces`, ``}},
		Checks:    []Check{test("tracing", "TestTheSpanOfAFailedAttemptIsStoredIfItIsSampled", "the attempt after the outage has")},
	},
	{
		Name:      "an old job is its producer's child",
		Breaks:    "a trace stays open for as long as its job waits",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"dispatcher.common.trace", ` && job.StartedAt.Sub(job.RunAt) <= freshFor && job.StartedAt.Sub(job.CreatedAt) <= freshFor`, ``}},
		Checks:    []Check{test("tracing", "TestModes/auto", "a child: true, want false")},
	},
	{
		Name:      "the receiver is the producer's child",
		Breaks:    "nobody sees in which attempt, and by which POST, a receiver was called",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"relay/webhook.tracePost", `range span.Inject(nil)`, `range map[string]string(nil)`}},
		Checks: []Check{
			test("tracing", "TestTheReceiverOfAWebhookIsAChildOfThePost", "the receiver got"),
			test("tracing", "TestAnEventIsPostedInItsOwnTrace", "the receiver got"),
		},
	},
	{
		Name:      "an event is published by a consumer",
		Breaks:    "a backend that pairs producers with consumers shows none for events",
		Invariant: "Traces follow jobs",
		Edits: []Edit{{
			"tracing.kindOf", `case engine.OpProcess:`, `case engine.OpProcess, engine.OpPublish, engine.OpSend:`,
		}},
		Checks: []Check{
			test("tracing", "TestEventsCarryTheirSpans", "events are published in a consumer"),
			test("tracing", "TestAnEventIsPostedInItsOwnTrace", "the batch is a consumer"),
		},
	},
	{
		Name:      "a job is beside its request",
		Breaks:    "nobody sees which request of the API has stored a job",
		Invariant: "Traces follow jobs",
		Edits:     []Edit{{"api.traced", `made := span.Inject(nil)`, `made := map[string]string{engine.HeaderTraceParent: own.parent}`}},
		Checks:    []Check{test("tracing", "TestARequestOfTheAPIIsAServersSpan", "of the request")},
	},
}
