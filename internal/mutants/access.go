package mutants

var access = []Mutant{
	{
		Name:      "a tenant sees all",
		Breaks:    "row security shows and lets change the rows of every tenant",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"migrations.outbox.secure", `WHEN tab.names_tenant THEN '((tenant_id = ( SELECT outbox.current_tenant() AS current_tenant)) OR ' || all_of_them || ')'`, `WHEN tab.names_tenant THEN 'true'`}},
		Checks: []Check{
			test("access", "TestWhatEachRoleSees", "shows a row of"),
			test("access", "TestAnOperatorOfOneTenantCannotReachAnothers", "another's rows changed"),
			test("access", "TestTheAPIWritesForItsTenantOnly", "another's rows changed"),
			test("access", "TestAProducerEnqueuesForItsTenantOnly", "want it refused by row-level security"),
		},
	},
	{
		Name:      "row security that is not forced",
		Breaks:    "whoever owns the tables sees every tenant, whatever policies there are",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"migrations.outbox.secure", `ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, `ENABLE ROW LEVEL SECURITY`}},
		Checks: []Check{
			test("migrations", "TestNothingIsLeftUnsecured", "every table forces row security"),
			test("access", "TestAnOwnerThatIsNoSuperuserRunsTheWholeEngine", "row security does not apply"),
		},
	},
	{
		Name:      "a tenant stays on the connection",
		Breaks:    "whoever gets the connection next sees the tenant that it served last",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"internal/engine.InTenant", `set_config('app.tenant_id', $1, true) FROM`, `set_config('app.tenant_id', $1, false) FROM`}},
		Checks: []Check{
			test("access", "TestAConnectionKeepsNothingOfATenant", "are seen without a tenant"),
			test("outbox", "TestAJobsTransactionIsOfItsTenant", "want none"),
		},
	},
	{
		Name:      "a producer sets what is the engine's",
		Breaks:    "whoever may enqueue stores jobs that look as if they had run",
		Invariant: "A role may do what it is for",
		Edits:     []Edit{{"migrations.outbox.secure", `('outbox.jobs', 'outbox_producer', 'INSERT', of_the_engine)`, `('outbox.jobs', 'outbox_producer', 'INSERT', '{}'::text[])`}},
		Checks: []Check{
			test("access", "TestAProducerMayNothingElse", "want SQLSTATE 42501"),
			test("migrations", "TestPrivilegesAreTheGoldenOnes", "lease_owner"),
		},
	},
	{
		Name:      "any secret is right",
		Breaks:    "whoever knows a token's id, which is shown and logged, has the token",
		Invariant: "A secret is stored, logged and shown nowhere",
		Edits:     []Edit{{"access.Tokens.Authenticate", `case !same || found == nil:`, `case !same && found == nil:`}},
		Checks:    []Check{test("access", "TestATokenThatIsNotGoodIsRefused", "want it refused")},
	},
	{
		Name:      "a token is remembered for long",
		Breaks:    "a revoked token is good for another minute",
		Invariant: "A secret is stored, logged and shown nowhere",
		Edits:     []Edit{{"access.cacheFor", `cacheFor = 4 * time.Second`, `cacheFor = time.Minute`}},
		Checks:    []Check{test("access", "TestALookIsBelievedForLessThanFiveSeconds", "want 2")},
	},
	{
		Name:      "a token cannot be revoked",
		Breaks:    "revoking is noted and has no effect",
		Invariant: "A secret is stored, logged and shown nowhere",
		Edits:     []Edit{{"access.Tokens.Authenticate", `case found.revoked:`, `case false:`}},
		Checks:    []Check{test("access", "TestARevokedTokenIsRefused", "want it refused")},
	},
	{
		Name:      "a JWT before its time",
		Breaks:    "a JWT is taken before the provider says that it is good",
		Invariant: "A JWT is taken only",
		Edits:     []Edit{{"access.OIDC.isEarly", `seconds > float64(now`, `seconds < 0*float64(now`}},
		Checks:    []Check{test("access", "TestAJWTThatIsNotGoodIsRefused", "good in a minute")},
	},
	{
		Name:      "a key for any algorithm",
		Breaks:    "a key that the provider publishes for one algorithm is used for another",
		Invariant: "A JWT is taken only",
		Edits:     []Edit{{"access.providerKeys.find", `key.algorithm != "" && key.algorithm != algorithm`, `false`}},
		Checks:    []Check{test("access", "TestAJWTThatIsNotGoodIsRefused", "with a key for another algorithm")},
	},
	{
		Name:      "every unknown key asks the provider",
		Breaks:    "whoever makes key ids up has us flood the provider",
		Invariant: "A JWT is taken only",
		Edits:     []Edit{{"access.providerKeys.resting", `return time.Since(p.asked) < keysRest`, `return false`}},
		Checks:    []Check{test("access", "TestAJWTThatIsNotGoodIsRefused", "want once at the start")},
	},
}
