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
			{"console.site.jobOf", `j.Tenant != tenant`, `tenant.IsZero()`},
			{"console.site.enter", `operator.WithTenant(v.ctx(), v.tenant())`, `operator.WithTenant(v.ctx(), (&visit{who: access.Principal{AllTenants: true}}).tenant())`},
		},
		Checks: []Check{test("console", "TestWhatACallerMayNotSeeIsNotThere", "want 404")},
	},
	{
		Name:      "a stream of everybody's jobs",
		Breaks:    "a page follows the jobs of other tenants",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"console.site.events", `s.watch.Changes.Open(v.ctx(), v.tenant(), `, `s.watch.Changes.Open(v.ctx(), outbox.ID{}, `}},
		Checks:    []Check{test("console", "TestAStreamHasTheChangesOfItsTenant", "a tenant got")},
	},
	{
		Name:      "an undo of what another did",
		Breaks:    "undoing a pause ends the one that somebody else has begun since, for reasons of their own",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"console.doUndo", `!now.asLeft(e)`, `now.ended`}},
		Checks:    []Check{test("console", "TestWhatSomebodyHasChangedSinceIsNotUndone", "want 409")},
	},
	{
		Name:      "an undo that has looked before",
		Breaks:    "undoing a pause ends another one that is committed between its look and its act",
		Invariant: "An operation does what was previewed",
		Edits:     []Edit{{"operator.Operator.Locked", `row.lock(ctx, sqlgen.New(tx))`, `ctx.Err()`}},
		Checks:    []Check{test("console", "TestAnUndoingThatMeetsAnotherActLooksAgain", "want 409")},
	},
	{
		Name:      "a sign-in of another",
		Breaks:    "a link signs a person in as the one who made it",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"access.SignIn.Finish", `if a.State == "" || subtle.ConstantTimeCompare([]byte(answer.Get("state")), []byte(a.State)) != 1 {`, `if subtle.ConstantTimeCompare(nil, nil) != 1 {`}},
		Checks: []Check{
			test("access", "TestAnAnswerThatIsNotToThisSignInIsRefused", "another's state"),
			test("console", "TestACallbackOfAnotherSignInIsRefused", "want 303"),
		},
	},
	{
		Name:      "a verifier for all",
		Breaks:    "a code that somebody has seen is good in another browser",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"access.SignIn.Begin", `Verifier: oauth2.GenerateVerifier()}`, `Verifier: oauth2.S256ChallengeFromVerifier("")}`}},
		Checks:    []Check{test("access", "TestAnAnswerThatIsNotToThisSignInIsRefused", "another's code, under my own state")},
	},
	{
		Name:      "a nonce that nobody looks at",
		Breaks:    "an ID token of one sign-in is good for another",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"access.SignIn.person", `case nonce != "" &&`, `case nonce != nonce &&`}},
		Checks:    []Check{test("access", "TestAnIDTokenThatIsNotGoodIsRefused", "of another sign-in")},
	},
	{
		Name:      "an ID token for another client",
		Breaks:    "what the provider says to any of its clients brings people in",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"access.OIDC.verify", `ClientID: o.config.Audience, `, `SkipClientIDCheck: true, `}},
		Checks:    []Check{test("access", "TestAnIDTokenThatIsNotGoodIsRefused", "for another client")},
	},
	{
		Name:      "a person who stays",
		Breaks:    "somebody who was removed at the provider goes on for an hour",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"console.persons.confirm", `case age < p.recheck,`, `case age < idleLength,`}},
		Checks:    []Check{test("console", "TestTheProviderIsAskedAgain", "not within 5 s")},
	},
	{
		Name:      "a session that outlives signing out",
		Breaks:    "a cookie that somebody has copied goes on after its person has signed out",
		Invariant: "A person signs in to the console with their own sign-in alone",
		Edits:     []Edit{{"console.site.whose", `case ended:`, `case ended && kept.Person == nil:`}},
		Checks:    []Check{test("console", "TestPeopleSignOutAtTheProviderToo", "want 303")},
	},
	{
		Name:      "a session that ends in one process only",
		Breaks:    "a copied cookie goes on in the other processes after its person has signed out",
		Invariant: "Who signs out is signed out in every process",
		Edits: []Edit{{
			"access.EndedSessions.End",
			`if err := e.db.EndSession(ctx, stored(id), pgvalue.Interval(left)); err != nil {`,
			`if err := error(nil); err != nil && pgvalue.Interval(left).Valid {`,
		}},
		Checks: []Check{
			test("access", "TestASessionEndsInEveryProcess", "is accepted"),
			test("console", "TestSigningOutHoldsInEveryProcess", "is accepted"),
		},
	},
	{
		Name:      "a stream that outlives its login",
		Breaks:    "a page goes on following jobs after its token was revoked",
		Invariant: "Nobody gets into the console without a capability",
		Edits: []Edit{{"console.site.mayStill", `	if err := s.authenticate(again); err != nil {`, `	if err := s.authenticate(again); err != nil || ctx != nil {
		return true
	}
	if err := ctx.Err(); err != nil {`}},
		Checks: []Check{test("console", "TestAStreamEndsWithItsLogin", "the stream says nothing")},
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
			"console.laidOut", `	_ = json.Indent(&b, []byte(text), "", "  ") // it is valid`,
			`	var value any
	_ = json.Unmarshal([]byte(text), &value)
	anew, _ := json.Marshal(value)
	_ = json.Indent(&b, anew, "", "  ")`,
		}},
		Checks: []Check{test("console", "TestPayloadsAreAsTheyAreStored", "1970670598291982290")},
	},
	{
		Name:      "a reveal that nobody records",
		Breaks:    "somebody reads passwords in payloads, and the audit does not say who",
		Invariant: "No act without its row in the audit",
		Edits:     []Edit{{"console.visit.recordRead", `if !v.site.config.AuditReads {`, `if v.site.config.AuditReads {`}},
		Checks:    []Check{test("console", "TestWhoReadsWhatIsMaskedIsAudited", "the audit has")},
	},
}
