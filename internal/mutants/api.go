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
}
