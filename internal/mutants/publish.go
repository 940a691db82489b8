package mutants

// published are bugs of publishing, and of the log of events.
var published = []Mutant{
	{
		Name:      "a position before the number",
		Breaks:    "a transaction that stalls between the two stores its event at a gap that relays have closed",
		Invariant: "No event is lost",
		Edits: []Edit{{
			"migrations.outbox.events", `DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('outbox.events_position_seq') END`,
			`DEFAULT nextval('outbox.events_position_seq')`,
		}},
		Checks: []Check{test("outbox", "TestATransactionHasItsNumberBeforeItsPosition", "has no number below")},
	},
	{
		Name:      "a serial event that takes no lock",
		Breaks:    "two transactions that publish an event of a key are in any order",
		Invariant: "An event exists exactly when its transaction commits",
		Edits:     []Edit{{"internal/sqlgen.PublishSerialEvent", `SELECT pg_advisory_xact_lock(`, `SELECT (`}},
		Checks:    []Check{test("outbox", "TestSerialEventsOfAKeyWaitForOneAnother", "wait for a lock")},
	},
	{
		Name:      "many serial events that take no lock",
		Breaks:    "the events of a batch are in any order with those of others",
		Invariant: "An event exists exactly when its transaction commits",
		Edits:     []Edit{{"outbox.holdKeys", `if requests[i].Options.Serial {`, `if false {`}},
		Checks:    []Check{test("outbox", "TestSerialEventsOfAKeyWaitForOneAnother", "wait for a lock")},
	},
	{
		Name:      "an event that stays behind a savepoint",
		Breaks:    "a savepoint that is rolled back leaves an event that was published meanwhile",
		Invariant: "An event exists exactly when its transaction commits",
		Edits:     []Edit{{"outbox.deferral.Exec", `if t.deferOff {`, `if t.deferOff && d.queued.verb == "enqueue" {`}},
		Checks:    []Check{test("outbox", "TestASavepointTakesItsEventsBack", "(-want +got)")},
	},
	{
		Name:      "events wake dispatchers",
		Breaks:    "a commit with events alone wakes all dispatchers, and no relay",
		Invariant: "A notification is a hint",
		Edits:     []Edit{{"outbox.channels.names", `names = append(names, engine.EventsChannel)`, `names = append(names, engine.Channel)`}},
		Checks:    []Check{test("outbox", "TestACommitWakesWhomItConcerns", "(-want +got)")},
	},
	{
		Name:      "a day that a sink is in the middle of",
		Breaks:    "events are dropped that a sink has yet to read",
		Invariant: "No event is lost",
		Edits:     []Edit{{"migrations.outbox.sinks_behind", `WHERE s.top < last_position OR`, `WHERE s.top < first_position OR`}},
		Checks:    []Check{test("reaper", "TestDaysOfEventsAreHeldForSinks/a_sink_is_in_the_middle", "days left")},
	},
	{
		Name:      "a day with a hole",
		Breaks:    "an event that comes to a hole is dropped before the sink has seen it",
		Invariant: "No event is lost",
		Edits:     []Edit{{"migrations.outbox.sinks_behind", ` AND s.holes && int8range(first_position, last_position, '[]')`, ` AND false`}},
		Checks:    []Check{test("reaper", "TestDaysOfEventsAreHeldForSinks/a_hole_is_in_a_day", "days left")},
	},
	{
		Name:      "a day that a replay has yet to pass",
		Breaks:    "a replay of old events finishes without those that reapers drop meanwhile",
		Invariant: "No event is lost",
		Edits:     []Edit{{"migrations.outbox.sinks_behind", `r.sink = s.sink AND r.finished_at IS NULL`, `false`}},
		Checks:    []Check{test("reaper", "TestADayOfEventsIsHeldForAReplay", "want it held")},
	},
	{
		Name:      "a drop that does not look again",
		Breaks:    "a sink that goes back after the reaper has looked finds its events gone",
		Invariant: "No event is lost",
		Edits:     []Edit{{"migrations.outbox.drop_day", `AND NOT lose THEN`, `AND false THEN`}},
		Checks:    []Check{test("reaper", "TestADayOfEventsIsNotDroppedWhileASinkHasNotReadIt", "want SQLSTATE 55006")},
	},
	{
		Name:      "a day that waits for its parent",
		Breaks:    "where transactions that publish overlap, no day is ever dropped, and the disk fills",
		Invariant: "No event is lost",
		Edits:     []Edit{{"migrations.outbox.drop_day", `            EXECUTE format('TRUNCATE ONLY %s', day);`, `            NULL;`}},
		Checks:    []Check{test("reaper", "TestADayIsEmptiedBesideATransactionThatUsesItsParent", "events left")},
	},
	{
		Name:      "a producer says where in the log",
		Breaks:    "whoever may publish puts an event where every sink has passed by",
		Invariant: "A role may do what it is for",
		Edits:     []Edit{{"migrations.outbox.secure", `('outbox.events', 'outbox_producer', 'INSERT', of_the_log)`, `('outbox.events', 'outbox_producer', 'INSERT', '{}'::text[])`}},
		Checks:    []Check{test("access", "TestNobodyRewritesTheLog", "want SQLSTATE 42501")},
	},
}
