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
}
