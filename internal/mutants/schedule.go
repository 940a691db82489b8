package mutants

var schedule = []Mutant{
	{
		Name:      "schedules are not locked",
		Breaks:    "two processes fire one tick; only the idempotency key stands between",
		Invariant: "A tick is fired once",
		Edits: []Edit{{"internal/sqlgen.LockDueSchedules", `LIMIT $3
FOR UPDATE SKIP LOCKED`, `LIMIT $3`}},
		Checks: []Check{test("schedule", "TestATickIsFiredByOneProcess", "a schedule that another transaction is firing was fired")},
	},
	{
		Name:      "schedules are waited for",
		Breaks:    "a process that stalls in the middle of a firing stalls the schedules of all",
		Invariant: "A tick is fired once",
		Edits: []Edit{{"internal/sqlgen.LockDueSchedules", `LIMIT $3
FOR UPDATE SKIP LOCKED`, `LIMIT $3
FOR UPDATE`}},
		Checks: []Check{test("schedule", "TestATickIsFiredByOneProcess", "lock timeout")},
	},
	{
		Name:      "ticks without an idempotency key",
		Breaks:    "a clock that is set back fires the tick again",
		Invariant: "A tick is fired once",
		Edits:     []Edit{{"schedule.firing.requests", `opts.IdempotencyKey = "schedule " + f.row.Name + " " + opts.Headers[headerScheduledFor]`, ``}},
		Checks:    []Check{test("schedule", "TestATickIsNotFiredAgainAfterTheClockWasSetBack", "want one")},
	},
	{
		Name:      "a new timing forgets what is due",
		Breaks:    "a rollout at the time of a tick loses it",
		Invariant: "A tick is fired once",
		Edits:     []Edit{{"schedule.declarer.fireBeforeChange", `|| !d.movesTicks(r) {`, `|| true {`}},
		Checks:    []Check{test("schedule", "TestATickThatIsDueSurvivesAChangeOfTheTiming", "fired for []")},
	},
	{
		Name:      "a change at run time forgets what is due",
		Breaks:    "a schedule that is changed at the time of a tick loses it",
		Invariant: "A tick is fired once",
		Edits:     []Edit{{"schedule.Edit.ChangeIn", `err == nil && !stored.equal(s.timing) &&`, `false && err == nil && !stored.equal(s.timing) &&`}},
		Checks:    []Check{test("schedule", "TestATickHasOneJobWhileItsScheduleIsChanged/the_change_has_the_lock", "fired for []")},
	},
	{
		Name:      "a program's schedule is changed at run time",
		Breaks:    "the next start undoes without a word what an operator has changed",
		Invariant: "What code declares, code changes",
		Edits:     []Edit{{"schedule.Edit.ChangeIn", `case locked[0].SetBy == nil:`, `case len(locked) > 1:`}},
		Checks:    []Check{test("schedule", "TestWhoseAScheduleIs", "want ErrDeclared")},
	},
	{
		Name:      "every schedule goes by real time",
		Breaks:    "02:30 fires twice in autumn and not at all in spring",
		Invariant: "Ticks follow the clocks of their zone",
		Edits:     []Edit{{"schedule.isSteady", `return strings.HasPrefix(texts[minuteField], "*") || everyHour(texts[hourField])`, `return len(texts) == len(cronFields)`}},
		Checks: []Check{
			test("schedule", "TestTicksAroundChangesOfTheClocks/a_time_that_comes_twice", "want 2026-10-26"),
			test("schedule", "TestTicksAgreeWithAClockThatIsWatched", "want one of"),
		},
	},
	{
		Name:      "a resumed schedule catches up",
		Breaks:    "what was paused on purpose fires after all",
		Invariant: "A tick is fired once",
		Edits:     []Edit{{"internal/sqlgen.ResumeSchedule", `CASE WHEN schedules.paused_at IS NULL THEN schedules.since ELSE statement_timestamp() END`, `schedules.since`}},
		Checks:    []Check{test("operator", "TestResumeCountsFromNow", "want now")},
	},
}
