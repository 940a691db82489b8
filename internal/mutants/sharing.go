package mutants

var sharing = []Mutant{
	{
		Name:      "tenants do not take turns",
		Breaks:    "when there are more tenants than room, the first ones are served again and again",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.waiting", `return slices.Concat(all[turn:], all[:turn])`, `return all`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestTenantsTakeTurns", "one tenant was served")},
	},
	{
		Name:      "a cursor stays before jobs of other kinds",
		Breaks:    "every claim reads the jobs that it has no handler for, as long as those wait",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Cursor.exhausted", `if front && since.Valid {`, `if false {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestACursorPassesWhatIsNotForUs", "cursor at")},
	},
	{
		Name:      "a wake-up answered without a survey",
		Breaks:    "a tenant's job that is notified during a claim waits for the next poll",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.loop.drain", `l.sched.Woken()`, `_ = l`}},
		Checks:    []Check{test("dispatcher", "TestAWakeUpDuringAClaimIsAnsweredByASurvey", "in vain: both jobs run")},
	},
	{
		Name:      "one that has many counts as one that holds few",
		Breaks:    "a tenant with a backlog is claimed for though there is no room, as long as few of its jobs are in hand",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.divideExpress", `if !c.more {`, `if true {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestReserveAndExpress", "one that has many more is claimed for")},
	},
	{
		Name:      "without room nothing is claimed",
		Breaks:    "a tenant's first job waits until the buffer, which another has filled, has been worked off",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Plan", `} else if s.Several() {`, `} else if false {`}},
		Checks: []Check{
			test("dispatcher/internal/scheduler", "TestReserveAndExpress", "without room, shares"),
			test("dispatcher", "TestAJobOvertakesTheBuffer", "others have started before it"),
		},
	},
	{
		Name:      "workers are reserved for nobody",
		Breaks:    "when the other tenants have gone, reserved workers stay idle until somebody wakes the queue",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Sleep", `if s.Several() {`, `if false {`}},
		Checks:    []Check{test("dispatcher", "TestReservedWorkersAreFreedInTime", "in vain: all slots are taken")},
	},
	{
		Name:      "a due job hides the next one",
		Breaks:    "a tenant's delayed job beside one that is due waits for the poll",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Claimed", `s.stale = true`, ``}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestASurveyTellsHowLongToSleep", "no survey after a claim")},
	},
	{
		Name:      "idle tenants are asked before others",
		Breaks:    "without room a job waits until all tenants were asked that have none",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.divideExpress", `if all[i].due {`, `if all[i].due || true {`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestReserveAndExpress", "tenants are given some, the one with due jobs")},
	},
	{
		Name:      "nobody has many",
		Breaks:    "a tenant with a backlog is claimed for though there is no room, because no claim learns that it has more",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Claimed", `share.Tenant.more = left <= 0`, `share.tenant.more = false`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestReserveAndExpress", "one that has many more is claimed for")},
	},
	{
		Name:      "no worker is reserved",
		Breaks:    "a tenant whose long jobs were fetched ahead has all workers",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher.loop.plan", `l.workers.reserve.set(p.Shared && !l.capacity.limited.Load())`, `l.workers.reserve.set(false)`}},
		Checks: []Check{
			test("dispatcher", "TestWhatGoesBackDoesNotTakeTheReservedWorker", "--- FAIL: TestWhatGoesBackDoesNotTakeTheReservedWorker"),
			test("dispatcher", "TestATenantsLongJobsLeaveWorkersForOthers", "it has not started after ten seconds"),
		},
	},
	{
		Name:      "one tenant may hold all workers",
		Breaks:    "whoever comes next waits until one of its jobs ends",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Plan", `p.Capacity -= s.concurrency / ReservePart`, `_ = reservePart`}},
		Checks: []Check{
			test("dispatcher/internal/scheduler", "TestReserveAndExpress", "want 10: four workers are reserved"),
			test("dispatcher", "TestAReservedWorkerIsForWhatIsNew", "in vain"),
		},
	},
	{
		Name:      "idle tenants take an even part",
		Breaks:    "a thousand tenants without jobs leave little of a claim to the busy one",
		Invariant: "Tenants share a queue",
		Edits:     []Edit{{"dispatcher/internal/scheduler.divide", `give(&all[i], 1)`, `give(&all[i], part)`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestIdleTenantsTakeNoRoom", "is given a quota of")},
	},
}
