package mutants

var service = []Mutant{
	{
		Name:      "a capability that nobody asks for",
		Breaks:    "whoever has a token may do everything",
		Invariant: "Nobody gets into the API without a capability",
		Edits:     []Edit{{"api/enter.go", `	case !who.Can(rt.needs):`, `	case false:`}},
		Checks:    []Check{test("api", "TestEveryRouteAsksWhoAndMayThey", "want 403")},
	},
	{
		Name:      "a bad request fails its neighbours",
		Breaks:    "requests that were stored together are all refused for the fault of one",
		Invariant: "A 202 is a commit",
		Edits:     []Edit{{"api/enqueue.go", `	if err != nil && (len(requests) == 1 || !wasRefused(err)) {`, `	if err != nil {`}},
		Checks:    []Check{test("api", "TestConcurrentRequestsShareATransactionButNotAFault", "want 202")},
	},
	{
		Name:      "an act on many dead letters forgets whose they are",
		Breaks:    "an operator of one tenant replays and dismisses those of all",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"api/dead_letters.go", `Fingerprint: f.Fingerprint, Tenant: within(ctx),`, `Fingerprint: f.Fingerprint,`}},
		Checks:    []Check{test("api", "TestManyDeadLettersAreReplayedInParts", "a dry run")},
	},
	{
		Name:      "a repeat tells of itself",
		Breaks:    "a repeat of a held job's request answers with a status that the job was not stored with",
		Invariant: "A 202 is a commit",
		Edits:     []Edit{{"api/enqueue.go", `			jobs[i].held = held[ids[i]]`, `			jobs[i].held = r.Options.Hold || held == nil`}},
		Checks:    []Check{test("api", "TestARepeatOfAHeldJobAnswersLikeTheFirst", "a repeat")},
	},
	{
		Name:      "the audit shows what was edited to all who may read it",
		Breaks:    "a payload is seen without payload.read",
		Invariant: "Nobody gets into the API without a capability",
		Edits:     []Edit{{"api/audit.go", `	if !who.Can(access.PayloadRead) {`, `	if false {`}},
		Checks:    []Check{test("api", "TestADeadLetterIsReplayedWithAnotherPayload", "without payload.read")},
	},
	{
		Name:      "a second capability that nobody asks for",
		Breaks:    "a payload is changed by whoever may change jobs",
		Invariant: "Nobody gets into the API without a capability",
		Edits:     []Edit{{"api/enter.go", `	case rt.also != "" && !who.Can(rt.also):`, `	case false:`}},
		Checks:    []Check{test("api", "TestEveryRouteAsksWhoAndMayThey", "want 403")},
	},
	{
		Name:      "trailing data is read over",
		Breaks:    "what two parsers read differently gets in",
		Invariant: "What reaches the API is read in one way only",
		Edits:     []Edit{{"api/strict.go", `		if s.space(); s.at < len(s.data) {`, `		if s.space(); s.at < 0 {`}},
		Checks:    []Check{test("api", "TestCheckJSON", "after the value")},
	},
	{
		Name:      "an operator's tenant stays on the connection",
		Breaks:    "whoever gets the connection next sees the tenant that was served last",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"operator/tied.go", `set_config('app.tenant_id', $1, true)`, `set_config('app.tenant_id', $1, false)`}},
		Checks:    []Check{test("operator", "TestAContextTiesAnOperatorToATenant", "without a tenant it sees")},
	},
	{
		Name:      "acts on tokens are not recorded",
		Breaks:    "nobody can tell who let whom in",
		Invariant: "No act without its row in the audit",
		Edits:     []Edit{{"access/tokens.go", `t.record = audit`, `t.record = func(context.Context, pgx.Tx, TokenAct) error { return nil }`}},
		Checks:    []Check{test("access", "TestActsOnTokensAreInTheAudit", "cannot scan NULL")},
	},
	{
		Name:      "a crowd waits as long as a burst",
		Breaks:    "an overloaded API answers late whatever it takes",
		Invariant: "An overload is refused, not queued",
		Edits:     []Edit{{"api/gate.go", `return crowdWait`, `return queueWait`}},
		Checks:    []Check{test("api", "TestABurstWaitsAndACrowdIsRefused", "want 25ms at most")},
	},
}
