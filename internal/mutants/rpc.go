package mutants

const nobodyIntoRPC = "Nobody gets into the RPC without a token and its capabilities"

var overNATS = []Mutant{
	{
		Name:      "a method that asks nobody for a token",
		Breaks:    "a client of the NATS server dismisses dead letters without a token",
		Invariant: nobodyIntoRPC,
		Edits:     []Edit{{"relay/nats/rpc.Service.carryOut", `if err := s.admit(ctx, r); err != nil {`, `if err := s.admit(ctx, r); err != nil && r.method.name != "DismissDLQ" {`}},
		Checks:    []Check{test("relay/nats/rpc", "TestEveryMethodAsksWhoAndMayThey", "want a AuthError, 401")},
	},
	{
		Name:      "only the first capability of a method",
		Breaks:    "a token that may not cancel jobs over HTTP does it over NATS",
		Invariant: nobodyIntoRPC,
		Edits:     []Edit{{"relay/nats/rpc.Service.admit", `range r.method.needs {`, `range r.method.needs[:1] {`}},
		Checks:    []Check{test("relay/nats/rpc", "TestEveryMethodAsksWhoAndMayThey", "want a AuthError, 403")},
	},
	{
		Name:      "a list over NATS of everybody's jobs",
		Breaks:    "an operator of one tenant lists the jobs of all",
		Invariant: nobodyIntoRPC,
		Edits: []Edit{ // both: row security hides them, too
			{"relay/nats/rpc.listJobs", `tenant, err := f.tenant(r)`, `tenant, err := outbox.ID{}, error(nil)`},
			{"relay/nats/rpc.Service.carryOut", `operator.WithTenant(ctx, r.tenant())`, `operator.WithTenant(ctx, outbox.ID{})`},
		},
		Checks: []Check{test("relay/nats/rpc", "TestTenantsSeeTheirOwn", "of each tenant")},
	},
	{
		Name:      "an act over NATS on anybody's job",
		Breaks:    "an operator of one tenant cancels and dismisses the jobs of another",
		Invariant: nobodyIntoRPC,
		Edits: []Edit{
			{"relay/nats/rpc.findJob", `Tenant: r.tenant()`, `Tenant: outbox.ID{}`},
			{"relay/nats/rpc.Service.carryOut", `operator.WithTenant(ctx, r.tenant())`, `operator.WithTenant(ctx, outbox.ID{})`},
		},
		Checks: []Check{test("relay/nats/rpc", "TestActs", "want a NotFoundError, 404")},
	},
	{
		Name:      "a message without a subject for its answer is carried out",
		Breaks:    "a message that a stream or a tool publishes again cancels a job, and nobody hears of it",
		Invariant: nobodyIntoRPC,
		Edits: []Edit{{"relay/nats/rpc.Service.take", `	if incoming.Reply() == "" {
		return
	}
	if !strings.HasPrefix(incoming.Reply(), "_") {`, `	if incoming.Subject() == "" {
		return
	}
	if incoming.Reply() != "" && !strings.HasPrefix(incoming.Reply(), "_") {`}},
		Checks: []Check{test("relay/nats/rpc", "TestARequestWithoutAnAnswerDoesNothing", "the job is cancelled")},
	},
	{
		Name:      "an answer goes wherever the request says",
		Breaks:    "a client that may only ask has the service publish into a stream",
		Invariant: nobodyIntoRPC,
		Edits:     []Edit{{"relay/nats/rpc.Service.take", `if !strings.HasPrefix(incoming.Reply(), "_") {`, `if strings.HasPrefix(incoming.Reply(), "!") {`}},
		Checks:    []Check{test("relay/nats/rpc", "TestAnswersGoToInboxesOnly", "an answer to orders.paid: true, want false")},
	},
}
