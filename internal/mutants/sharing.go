package mutants

const (
	shareGo = "dispatcher/share.go"
	laneGo  = "dispatcher/lane.go"
)

var sharing = []Mutant{
	{
		Name:      "tenants do not take turns",
		Breaks:    "when there are more tenants than room, the first ones are served again and again",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{laneGo, `	return slices.Concat(all[turn:], all[:turn])`, `	return slices.Concat(all[min(turn, 0):], all[:0])`}},
		Checks:    []Check{test("dispatcher", "TestTenantsTakeTurns", "one tenant was served")},
	},
	{
		Name:      "stuck behind another kind",
		Breaks:    "jobs without a handler hide those behind them",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{shareGo, `	return len(h.claimed), q.passLanes(ctx, started)`, `	return len(h.claimed), nil`}},
		Checks:    []Check{test("dispatcher", "TestTenantsJobsBehindOnesOfOtherKinds", "in vain: all but the foreign jobs are done")},
	},
	{
		Name:      "a wake-up answered without a walk",
		Breaks:    "a tenant's job that is told of during a claim waits for the next poll",
		Invariant: "Tenants share a queue",
		Edits: []Edit{{queueGo, `			q.shared.woken()          // which has to walk for it: a new tenant's job may have been committed after the last walk
`, ``}},
		Checks: []Check{test("dispatcher", "TestAWakeUpDuringAClaimIsAnsweredByAWalk", "in vain: both jobs run")},
	},
	{
		Name:      "what goes back goes ahead",
		Breaks:    "a tenant whose long jobs were fetched ahead and go back takes the slots that are kept for others",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{queueGo, `func(a *attempt) { q.shared.filled.set(a.job.Tenant, true) }`, `func(*attempt) {}`}},
		Checks:    []Check{test("dispatcher", "TestWhatGoesBackDoesNotTakeTheKeptSlot", "it starts beside jobs that never end")},
	},
}
