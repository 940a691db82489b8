package mutants

var pages = []Mutant{
	{
		Name:      "a page that nobody guards",
		Breaks:    "a token that may read jobs opens every page, and pauses queues",
		Invariant: "Nobody gets into the console without a capability",
		Edits:     []Edit{{"console.site.admit", `	case g.missing(v.who) != "":`, `	case false:`}},
		Checks:    []Check{test("console", "TestRoutesTakeTheirCapabilities", "want 403")},
	},
	{
		Name:      "forms of other sites",
		Breaks:    "a page elsewhere acts in the name of a person who is signed in",
		Invariant: "Nobody gets into the console without a capability",
		Edits:     []Edit{{"console.site.checkOrigin", `	err := s.origins.Check(r)`, `	var err error`}},
		Checks:    []Check{test("console", "TestRequestsFromElsewhereAreRefused", "want 403")},
	},
	{
		Name:      "a development server for all",
		Breaks:    "another machine gets in where this one needs no login",
		Invariant: "Nobody gets into the console without a capability",
		Edits:     []Edit{{"internal/callers.IsLocal", `!from.Addr().Unmap().IsLoopback()`, `!from.IsValid()`}},
		Checks:    []Check{test("console", "TestWithoutALoginOnThisMachineOnly", "want 401")},
	},
	{
		Name:      "a foreign job by its id",
		Breaks:    "a page shows a job of another tenant to a person who has its id",
		Invariant: "Tenants see their own",
		Edits: []Edit{ // both: row security hides it, too
			{"console.site.jobOf", `if tenant := v.tenant(); !tenant.IsZero() {`, `if tenant := v.tenant(); tenant != tenant {`},
			{"console.site.enter", `operator.TiedTo(v.ctx(), v.tenant())`, `operator.TiedTo(v.ctx(), (&visit{who: access.Principal{AllTenants: true}}).tenant())`},
		},
		Checks: []Check{test("console", "TestWhatACallerMayNotSeeIsNotThere", "want 404")},
	},
	{
		Name:      "secrets in the open",
		Breaks:    "a page shows passwords that stand in a payload before anybody asks for them",
		Invariant: "A page shows a job's bytes as text, and secrets when they are asked for",
		Edits:     []Edit{{"console.site.mask", `	if reveal {`, `	if len(s.config.Redact) >= 0 {`}},
		Checks:    []Check{test("console", "TestHostileTextStaysText", "is on the page")},
	},
	{
		Name:      "a picture of a payload",
		Breaks:    "numbers of a payload are read and written anew: large ones are rounded",
		Invariant: "A page shows a job's bytes as text, and secrets when they are asked for",
		Edits: []Edit{{
			"console.content.json", `	_ = json.Indent(&laidOut, stored, "", "  ") // it is valid`,
			`	var value any
	_ = json.Unmarshal(stored, &value)
	stored, _ = json.Marshal(value)
	_ = json.Indent(&laidOut, stored, "", "  ")`,
		}},
		Checks: []Check{test("console", "TestPayloadsAreAsTheyAreStored", "1970670598291982290")},
	},
}
