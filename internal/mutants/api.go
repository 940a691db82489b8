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
		Name:      "trailing data is read over",
		Breaks:    "what two parsers read differently gets in",
		Invariant: "What reaches the API is read in one way only",
		Edits:     []Edit{{"api/strict.go", `		if s.space(); s.at < len(s.data) {`, `		if s.space(); s.at < 0 {`}},
		Checks:    []Check{test("api", "TestCheckJSON", "after the value")},
	},
	{
		Name:      "a position behind late commits",
		Breaks:    "what was being settled while somebody looked is never told",
		Invariant: "Who comes back has missed nothing",
		Edits: []Edit{
			{"internal/sqlgen/changes.sql.go", `SELECT pg_snapshot_xmin(seen.snapshot)::text AS horizon`, `SELECT pg_snapshot_xmax(seen.snapshot)::text AS horizon`},
			{"internal/sqlgen/changes.sql.go", `SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon`, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS horizon`},
		},
		Checks: []Check{
			test("api", "TestWhatCommitsLateIsTold/a_transaction", "was never told"),
			test("api", "TestWhatCommitsLateIsTold/a_savepoint", "was never told"),
		},
	},
	{
		Name:      "an id for every event",
		Breaks:    "who loses the connection within a batch is not told its rest",
		Invariant: "Who comes back has missed nothing",
		Edits:     []Edit{{"api/hub.go", `		if i == len(changes)-1 {`, `		if i >= 0 {`}},
		Checks:    []Check{test("api", "TestABatchThatWasCutOffIsToldAgain", "misses the others")},
	},
	{
		Name:      "events of all tenants",
		Breaks:    "a tenant's operator is told of the jobs of others",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"operator/changes.go", `Tenant: tenantOrAny(tenant), MaxRows`, `Tenant: tenantOrAny(outbox.ID{}), MaxRows`}},
		Checks:    []Check{test("api", "TestAStreamIsItsTenants", "is told of")},
	},
}
