package mutants

var sharing = []Mutant{
	{
		Name:      "tenants do not take turns",
		Breaks:    "when there are more tenants than room, the first ones are served again and again",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.laneBook.tenants", `	return slices.Concat(all[turn:], all[:turn])`, `	return slices.Concat(all[min(turn, 0):], all[:0])`}},
		Checks:    []Check{test("dispatcher", "TestTenantsTakeTurns", "one tenant was served")},
	},
	{
		Name:      "stuck behind another kind",
		Breaks:    "jobs without a handler hide those behind them",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.queue.claimShared", `	return len(h.claimed), q.passLanes(ctx, started)`, `	return len(h.claimed), nil`}},
		Checks:    []Check{test("dispatcher", "TestTenantsJobsBehindOnesOfOtherKinds", "in vain: all but the foreign jobs are done")},
	},
	{
		Name:      "a wake-up answered without a walk",
		Breaks:    "a tenant's job that is told of during a claim waits for the next poll",
		Invariant: "Tenants share a queue",
		Edits: []Edit{{"dispatcher.queue.drain", `			q.shared.woken()          // which has to walk for it: a new tenant's job may have been committed after the last walk
`, ``}},
		Checks: []Check{test("dispatcher", "TestAWakeUpDuringAClaimIsAnsweredByAWalk", "in vain: both jobs run")},
	},
	{
		Name:      "what goes back goes ahead",
		Breaks:    "a tenant whose long jobs were fetched ahead and go back takes the slots that are kept for others",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.queue.giveBackStale", `		if n > sparse {`, `		if n > maxTenantSet {`}},
		Checks:    []Check{test("dispatcher", "TestWhatGoesBackDoesNotTakeTheKeptSlot", "it starts beside jobs that never end")},
	},
	{
		Name:      "who leaves a kept slot says nothing",
		Breaks:    "with all other slots taken, the next tenant's job waits for the poll beside a free slot",
		Invariant: "Tenants share a queue",
		Edits: []Edit{{"dispatcher.queue.leave", `	if q.hungry.Load() {
		q.poke()
	}
`, ``}},
		Checks: []Check{test("dispatcher", "TestWhoLeavesAKeptSlotMakesRoom", "in vain: all three start")},
	},
	{
		Name:      "without room nothing new is looked for",
		Breaks:    "the first job of a priority or with a key waits beside a kept slot that is free",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.queue.lookAhead", `	if q.kept.free() == 0 {`, `	if true {`}},
		Checks:    []Check{test("dispatcher", "TestAKeptSlotIsForWhatIsNew", "in vain: it starts")},
	},
	{
		Name:      "slots are kept for nobody",
		Breaks:    "when the other tenants have gone, kept slots stay idle until somebody wakes the queue",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.queue.drain", `err == nil && q.keepsForNobody()`, `false`}},
		Checks:    []Check{test("dispatcher", "TestKeptSlotsAreGivenBackInTime", "in vain: all slots are taken")},
	},
	{
		Name:      "a lane's due job hides the next one",
		Breaks:    "a tenant's delayed job beside one that is due waits for the poll",
		Invariant: "Tenants share a queue",
		Edits: []Edit{{"dispatcher.laneBook.note", `		b.lap.soonest(started, row.FutureInSeconds)
`, ``}},
		Checks: []Check{test("dispatcher", "TestALaneThatIsDueTellsWhatIsDueNext", "in vain: both jobs run")},
	},
	{
		Name:      "many keys of one tenant go ahead",
		Breaks:    "a tenant whose jobs with keys have all other slots takes the kept one, too",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.keyedLook.note", `k.many = looked > sparse`, `k.many = false`}},
		Checks:    []Check{test("dispatcher", "TestAKeptSlotIsNotForOneWithManyKeys", "--- FAIL: TestAKeptSlotIsNotForOneWithManyKeys")},
	},
}
