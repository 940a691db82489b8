package mutants

const neverPublished = "missing messages: events committed, never published"

// relayed are bugs of the relay and its cursor.
var relayed = []Mutant{
	{
		Name:      "holes are skipped",
		Breaks:    "an event of a transaction that commits late is never published",
		Invariant: "No event is lost",
		Edits: []Edit{{"relay.cursor.after", `		if position > next.top+1 {
			next.holes = append(next.holes, hole{low: next.top + 1, high: position - 1})
		}
`, ``}},
		Checks: []Check{
			test("relay", "TestAnOpenTransactionHoldsUpNobody", `want ["c1" "a1" "a2"]`),
			row("E4", neverPublished),
		},
	},
	{
		Name:      "a hole is closed at once",
		Breaks:    "an event of a transaction that runs for longer than a look at its hole is never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.cursor.looked", `running(h.before); h.running == 0 {`, `running(h.before); true {`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerKnowsTheHoles", `got [], want ["a1"]`)},
	},
	{
		Name:      "a hole is closed by its age",
		Breaks:    "an event of a transaction that outlives another is never published",
		Invariant: "No event is lost",
		Edits: []Edit{{"relay.cursor.looked", `if h.running = running(h.before); h.running == 0 {`, `was := h.running
			if h.running = running(h.before); h.running == 0 || was >= 0 {`}},
		Checks: []Check{test("relay", "TestAHoleWaitsForAllTransactions", "the hole is closed while")},
	},
	{
		Name:      "the log is read in the order of transactions",
		Breaks:    "a key's later event is published first, if its transaction began earlier",
		Invariant: "A key's events keep their order",
		Edits: []Edit{
			{"internal/sqlgen.EventsAfter", `headers, bytes, sum(bytes)`, `headers, bytes, xid, sum(bytes)`},
			{"internal/sqlgen.EventsAfter", `END AS bytes
`, `END AS bytes, xmin::text::bigint AS xid
`},
			{"internal/sqlgen.EventsAfter", `WHERE coalesce(before, 0) < $3::bigint
`, `WHERE coalesce(before, 0) < $3::bigint
ORDER BY xid, position
`},
		},
		Checks: []Check{test("relay", "TestTheOrderOfAKeyIsThatOfItsLock", " was published after ")},
	},
	{
		Name:      "a hole has a bound that is too low",
		Breaks:    "a hole is closed although a transaction that began before it was noticed runs",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.NewTransaction", `SELECT pg_current_xact_id()::text::bigint AS xid`, `SELECT 1::bigint AS xid`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerKnowsTheHoles", `got [], want ["a1"]`)},
	},
	{
		Name:      "holes are looked at once",
		Breaks:    "an event of a transaction that runs for longer than a look at its hole is never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.cursor.mayBeFilled", `h.running != running(h.before)`, `h.running < 0 && running(h.before) >= 0`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerKnowsTheHoles", `got [], want ["a1"]`)},
	},
	{
		Name:      "a store that is given up comes after the last",
		Breaks:    "the last batch before a stop is published again by the next owner",
		Invariant: "A sink has one owner",
		Edits:     []Edit{{"relay.ownership.storeOnce", `context.WithoutCancel(ctx)`, `ctx`}},
		Checks:    []Check{test("relay", "TestAStopIsTheLastToStoreTheCursor", `got ["1" "2"], want ["2"]`)},
	},
	{
		Name:      "new events beside a replay that stops them",
		Breaks:    "a consumer gets new messages of a key between the old ones of a replay with --stop-live",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.ownership.isStopped", `o.paused || o.exclusiveReplay != ""`, `o.paused`}, {"relay.ownership.awaitPause", `paused && o.exclusiveReplay != ""`, `false`}},
		Checks:    []Check{test("relay", "TestAReplayStopsWhatIsNew", "the sink says that it waits")},
	},
	{
		Name:      "the next owner has yet to hear that the sink is paused",
		Breaks:    "a process that becomes the owner of a paused sink publishes a page to it",
		Invariant: "A sink has one owner",
		Edits:     []Edit{{"relay.publisher.take", `paused: row.Paused`, `paused: false`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerPublishesNothingOfAPausedSink", `got ["1" "2"], want ["1"]`)},
	},
	{
		Name:      "the next owner has yet to hear of a replay that stops what is new",
		Breaks:    "a consumer gets new messages between those of a replay with --stop-live when the sink changes its owner",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.publisher.take", `exclusiveReplay: row.Alone`, `exclusiveReplay: ""`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerPublishesNothingNewBesideAReplay", "messages of the replay")},
	},
	{
		Name:      "a replay that stops what is new does not wait for the cursor",
		Breaks:    "a replay with --stop-live of events that the sink has yet to publish stands still for ever, and the sink with it",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.replayer.turn", `!p.o.hasKept(r.last)`, `false`}},
		Checks:    []Check{test("relay", "TestAReplayThatStopsWhatIsNewWaitsForTheCursor", "the replay ends")},
	},
	{
		Name:      "any number of gaps",
		Breaks:    "the row of a sink grows beyond all bounds beside a transaction that stays open",
		Invariant: "A hole in the log is closed",
		Edits:     []Edit{{"relay.logReader.newer", `late || len(c.holes) >= maxHoles {`, `late {`}},
		Checks:    []Check{test("relay", "TestTooManyGapsWaitForTheirTransactions", "are published beside 1,000 gaps")},
	},
	{
		Name:      "any number of holes is stored",
		Breaks:    "two long transactions whose positions alternate make a cursor that cannot be stored in time, and the sink loses its owner again and again",
		Invariant: "A hole in the log is closed",
		Edits:     []Edit{{"relay.cursor.grouped", `len(c.holes) <= most {`, `true {`}},
		Checks:    []Check{test("relay", "TestStoredHolesAreLimited", "holes are stored, want 10")},
	},
	{
		Name:      "holes are never closed",
		Breaks:    "a position of a transaction that was rolled back is looked at for ever",
		Invariant: "A hole in the log is closed",
		Edits:     []Edit{{"relay.cursor.looked", `running(h.before); h.running == 0 {`, `running(h.before); false {`}},
		Checks:    []Check{test("relay", "TestAnOpenTransactionHoldsUpNobody", "the hole of a transaction that was rolled back is closed")},
	},
	{
		Name:      "holes are looked at with an older snapshot",
		Breaks:    "an event overtakes one of its key that came to a hole",
		Invariant: "A key's events keep their order",
		Edits: []Edit{
			{"relay.logReader.read", `	newer, full, running, err := l.newer(ctx, c, most, late)
`, `	_, _, running, err := l.newer(ctx, cursor{top: 1 << 62, holes: c.holes}, most, late)
	var stale []Event
	if holes := c.mayBeFilled(running); err == nil && len(holes) > 0 {
		stale, _, err = l.atHoles(ctx, holes, most)
	}
	if err != nil {
		return page{}, err
	}
	newer, full, _, err := l.newer(ctx, c, most, late)
`},
			{"relay.logReader.read", `events, n, err := l.atHoles(ctx, holes, most)`, `events, n, err := stale, len(holes), error(nil)`},
		},
		Checks: []Check{test("relay", "TestNothingOvertakesWhatComesToAHole", `got ["c" "b"`)},
	},
	{
		Name:      "a cursor moves past what was not accepted",
		Breaks:    "a message that the broker did not take is never published",
		Invariant: "No event is lost",
		Edits: []Edit{{
			"relay.delivery.passed", `return read.before.past(slices.DeleteFunc(slices.Clone(d.events), func(e Event) bool { return left[e.Position] }))`,
			`return read.after`,
		}},
		Checks: []Check{
			test("relay", "TestAnOutageLosesNothingAndShows", `want ["1" "2" "3" "4"]`),
			test("relay", "TestAFaultySinkLosesNothing/panics", `want ["1" "2"]`),
			row("E2", neverPublished),
		},
	},
	{
		Name:      "what was not tried counts as published",
		Breaks:    "messages behind one that was not accepted are never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.delivery.pass", `		case err == nil:`, `		case err == nil || errors.Is(err, ErrNotTried):`}},
		Checks:    []Check{test("relay", "TestAnOutageLosesNothingAndShows", `want ["1" "2" "3" "4"]`)},
	},
	{
		Name:      "every process moves the cursor",
		Breaks:    "a process that has lost the sink overwrites the position of the one that has it",
		Invariant: "A sink has one owner",
		Edits: []Edit{{"internal/sqlgen.AdvanceSink", `  AND owner = $10::text
  AND epoch = $11
`, `  AND ($10::text, $11::bigint) IS NOT NULL
`}},
		Checks: []Check{test("relay", "TestADeposedOwnerDoesNotMoveTheCursor", "top = 1, want 0")},
	},
	{
		Name:      "a lease lasts for as long as the clock was set back",
		Breaks:    "after a failover to a server whose clock is behind nobody publishes to the sink of a process that is gone",
		Invariant: "No event is lost",
		Edits: []Edit{
			{"internal/sqlgen.OwnSink", ` OR lease_expires_at > clock_timestamp() + interval '10 minutes'`, ``},
			{"internal/sqlgen.SinkLapsesIn", ` OR lease_expires_at > clock_timestamp() + interval '10 minutes'`, ``},
		},
		Checks: []Check{test("relay", "TestALeaseFromBeforeTheClockWasSetBackIsOver", `got [], want ["1"]`)},
	},
	{
		Name:      "another timeline is nothing new",
		Breaks:    "events at positions that are given out again after a failover are never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.OwnSink", `WHEN found.lost THEN`, `WHEN false THEN`}},
		Checks:    []Check{test("relay", "TestPositionsThatAreGivenOutAgainAreNotSkipped/another_timeline", `want ["1" "2" "3 again"`)},
	},
	{
		Name:      "an event at the sink's position is the one that was published",
		Breaks:    "events at positions that are given out again after a failover are never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.OwnSink", `position = sinks.top AND id = sinks.top_id`, `position = sinks.top`}},
		Checks:    []Check{test("relay", "TestPositionsThatAreGivenOutAgainAreNotSkipped/another_timeline", `want ["1" "2" "3 again"`)},
	},
	{
		Name:      "a sink does not know the event at its position",
		Breaks:    "after a planned switchover, which has lost nothing, every sink repeats what it has published since a mark",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.cursor.past", `next.topID, newest = e.ID, e.At`, `newest = e.At`}},
		Checks:    []Check{test("relay", "TestASinkKnowsTheEventAtItsPosition", "want 3")},
	},
	{
		Name:      "a rewind goes back to the newer mark",
		Breaks:    "events at positions that are given out again after a failover are never published, if a mark is as new as what was lost",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.OwnSink", `coalesce(sinks.rewind_top, 0)`, `coalesce(sinks.mark_top, 0)`}},
		Checks:    []Check{test("relay", "TestARewindGoesBackToAMark", "the newer mark is too new")},
	},
	{
		Name:      "a cursor is stored on any connection",
		Breaks:    "after a crash of the server that has lost commits a sink stores that it has come past positions that are given out again",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.ownership.storeOnce", `sqlgen.New(o.conn)`, `sqlgen.New(o.publisher.pool)`}},
		Checks:    []Check{test("relay", "TestACrashThatAnotherSinkHasMetEndsOwnerships", "1 sinks have begun anew")},
	},
	{
		Name:      "fewer positions are nothing new",
		Breaks:    "events at positions that are given out again after a restore are never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.OwnSink", `WHEN greatest(found.was, log.newest) > log.last THEN`, `WHEN log.newest > log.last THEN`}},
		Checks:    []Check{test("relay", "TestPositionsThatAreGivenOutAgainAreNotSkipped/fewer_positions", "in vain")},
	},
	{
		Name:      "an old look is the end of the log",
		Breaks:    "a sink that takes what another has read sleeps beside an event that was stored meanwhile",
		Invariant: "Sinks that share what they read stay independent",
		Edits:     []Edit{{"relay.shared.newer", `l.full || l.wakes != s.wakes.Load()`, `l.full`}},
		Checks:    []Check{test("relay", "TestSinksShareALook", "there may be more: false, want true")},
	},
	{
		Name:      "an owner takes what was read before",
		Breaks:    "after a crash that has lost commits a sink passes events at the same positions by",
		Invariant: "Sinks that share what they read stay independent",
		Edits: []Edit{{"relay.publisher.take", `		p.shared.forget()
`, ``}},
		Checks: []Check{test("relay", "TestAnOwnerTakesNothingThatWasReadBefore", `want ["lost" "found"]`)},
	},
	{
		Name:      "sinks share the timeline of others",
		Breaks:    "after a failover a sink gets events that were lost, and passes others at their positions by",
		Invariant: "Sinks that share what they read stay independent",
		Edits:     []Edit{{"relay.shared.find", `l.timeline == timeline && `, ``}},
		Checks:    []Check{test("relay", "TestSinksShareALook", "of another timeline")},
	},
	{
		Name:      "a new timeline is read with an old cursor",
		Breaks:    "after a failover an event overtakes those of its key that have to be repeated",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.logReader.look", `if timeline != l.timeline {`, `if false {`}},
		Checks:    []Check{test("relay", "TestOrderOutlivesAFailover", `"4" "new 5"`)},
	},
	{
		Name:      "newer events do not wait for late ones",
		Breaks:    "an event overtakes those of its key that a large transaction has stored before",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.logReader.read", `found.events, found.full, found.late = nil, true, true`, `found.full, found.more = true, false`}},
		Checks:    []Check{test("relay", "TestALateTransactionIsReadToItsEnd", "is 2501")},
	},
	{
		Name:      "an owner does not look at the timeline",
		Breaks:    "an owner whose connections outlive a failover skips what it should repeat",
		Invariant: "No event is lost",
		Edits: []Edit{{"internal/sqlgen.AdvanceSink", `
  AND timeline = outbox.timeline()
`, `
`}},
		Checks: []Check{test("relay", "TestAnOwnerNoticesAnotherTimeline", "in vain")},
	},
	{
		Name:      "a replay begins anew",
		Breaks:    "a replay whose owner ends is published from its beginning by the next one",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"internal/sqlgen.AdvanceReplay", `greatest(replays.position, $1::bigint)`, `least(replays.position, $1::bigint)`}},
		Checks:    []Check{test("relay", "TestTheNextOwnerGoesOnWithAReplay", "the first has published")},
	},
	{
		Name:      "a replay of every tenant",
		Breaks:    "a tenant's replay publishes the events of others",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"internal/sqlgen.EventsToReplay", `(replay.tenant_id IS NULL OR event.tenant_id = replay.tenant_id)`, `true`}},
		Checks:    []Check{test("relay", "TestAReplayPublishesAgain", "it published")},
	},
	{
		Name:      "new ids that are the old ones",
		Breaks:    "a broker drops what is to be published under new ids",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"relay.Event.messageID", `if e.again {`, `if false {`}},
		Checks:    []Check{test("relay", "TestAReplayPublishesAgain", "a message has the id")},
	},
	{
		Name:      "a replay stops the sink",
		Breaks:    "new events wait for a replay that cannot go on",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits: []Edit{{"relay.publisher.publishPages", `			again.ended <- again.sendIfOurs(ctx, ours)
`, `			if err = again.sendIfOurs(ctx, ours); err != nil {
				stop()
			}
			again.ended <- err
`}},
		Checks: []Check{test("relay", "TestNewEventsDoNotWaitForAReplay", "beside a replay that waits")},
	},
	{
		Name:      "replays of one sink are worked off one after the other",
		Breaks:    "a tenant's replay with a low rate keeps those of all others waiting",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"relay.nextReplay", `r.due.Before(next.due)`, `r.id.String() < next.id.String()`}},
		Checks:    []Check{test("relay", "TestReplaysTakeTurns", "in vain")},
	},
	{
		Name:      "a page of a replay is stored before it is published",
		Breaks:    "what a sink does not take at once is missing in the replay",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits: []Edit{{"relay.replayer.turn", `	meant := positions(page.events)
`, `	if err := p.store(ctx, r, examined, nil); err != nil {
		return err
	}
	meant := positions(page.events)
`}},
		Checks: []Check{test("relay", "TestReplaysOutliveTheirOwners", "it published")},
	},
	{
		Name:      "jobs of every tenant are enqueued again",
		Breaks:    "a tenant's replay of jobs enqueues those of others again",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"internal/sqlgen.ReplayHistory", `OR done.tenant_id = $4)`, `OR $4 IS NOT NULL)`}},
		Checks: []Check{
			test("operator", "TestJobsOfTheHistoryAreEnqueuedAgain", "00000000-0000-0000-0000-000000000001"),
			test("api", "TestJobsAreEnqueuedAgainOfTheTokensTenant", "of another"),
		},
	},
	{
		Name:      "copies are copied",
		Breaks:    "a second replay of jobs enqueues the copies of the first one, too",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"internal/sqlgen.ReplayHistory", `AND NOT coalesce(jsonb_exists(done.headers, 'posthaste-replay'), false)`, ``}},
		Checks:    []Check{test("operator", "TestJobsOfTheHistoryAreEnqueuedAgain", "the second time")},
	},
	{
		Name:      "what was a job is none again when a sink goes back",
		Breaks:    "an event that an operator has published again, and that is refused again, is passed by without a dead letter",
		Invariant: "No event is lost",
		Edits:     []Edit{{"internal/sqlgen.SeekSink", `WHERE NOT passed.forward`, `WHERE passed.forward`}},
		Checks:    []Check{test("relay", "TestWhatIsRefusedAgainIsNotLost", "there are 2 dead letters")},
	},
	{
		Name:      "a skip goes back",
		Breaks:    "a sink that has passed the position of a confirmed skip publishes events again",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"internal/sqlgen.SeekSink", `sign(target.position - found.top) = sign(`, `found.top IS NOT NULL OR 0 = sign(`}},
		Checks:    []Check{test("operator", "TestAMoveKeepsItsDirection", "{from:0 to:4 now:5 events:-1}: moved")},
	},
	{
		Name:      "a sink is removed with its messages",
		Breaks:    "messages that a sink has refused stay open jobs that no process carries out",
		Invariant: "No event is lost",
		Edits: []Edit{{"internal/sqlgen.RemoveSink", `      AND found.held = 0
`, ``}},
		Checks: []Check{test("relay", "TestWhatIsRefusedAgainIsNotLost", "sink not found")},
	},
	{
		Name:      "a sink that has not returned is called again",
		Breaks:    "what a call sends after its time overtakes, or is overtaken by, what is sent anew",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.callSink", `if t.hanging.Load() > 0 {`, `if false {`}},
		Checks:    []Check{test("relay", "TestASinkThatDoesNotReturnIsNotCalledAgain", "before it had returned")},
	},
	{
		Name:      "a destination that is missing is given up at once",
		Breaks:    "the election of a leader has messages refused, and their keys held",
		Invariant: "A refused message holds up its key only",
		Edits:     []Edit{{"relay.delivery.judge", `> noDestinationLimit`, `>= 0`}},
		Checks:    []Check{test("relay", "TestADestinationThatIsMissingForAnHour", "the sink says what is missing")},
	},
	{
		Name:      "a destination that is away stops its sink",
		Breaks:    "a stream that nobody has created stops every other stream of the sink",
		Invariant: "A refused message holds up its key only",
		Edits: []Edit{{
			"relay.destinations.wait", `len(d.waiting) >= maxWaiting || d.bytes >= maxWaitingBytes`, `true`,
		}},
		Checks: []Check{test("relay", "TestADestinationThatIsAwayHoldsUpNoOther/relay_full$", "of other, want")},
	},
	{
		Name:      "a message overtakes one of its key that waits for a destination",
		Breaks:    "a key's messages to two destinations come in the wrong order after an outage of one of them",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.destinations.isBehind", `return d.keys.has(e)`, `return false`}},
		Checks:    []Check{test("relay", "TestADestinationThatIsAwayHoldsUpNoOther/relay_full$", "of the key that waits are published")},
	},
	{
		Name:      "a message overtakes one of its key that shares its position with one that waits",
		Breaks:    "after a copy of the log without its sequences, a key's messages come in the wrong order",
		Invariant: "A key's events keep their order",
		Edits: []Edit{{
			"relay.delivery.waitBeside", `!d.done[i] && slices.Contains(waiting, e.Position)`, `slices.Contains(waiting, e.Position) && false`,
		}},
		Checks: []Check{test("relay", "TestAMessageBesideOneThatWaitsIsNotOvertaken", `want ["B1" "B2"]`)},
	},
	{
		Name:      "the stored cursor passes messages that wait",
		Breaks:    "what waits for a destination is lost when the sink's owner changes",
		Invariant: "No event is lost",
		Edits: []Edit{{
			"relay.delivery.cursor", `d.passed(read).withHoles(d.o.destinations.waiting)`, `d.passed(read)`,
		}},
		Checks: []Check{test("relay", "TestADestinationThatIsAwayHoldsUpNoOther/relay_full$", "the cursor has holes where messages wait")},
	},
	{
		Name:      "any number of messages wait for a destination",
		Breaks:    "a destination that is away for days takes the memory of the process, and all that waits is read every minute",
		Invariant: "What a sink refuses is bounded",
		Edits:     []Edit{{"relay.destinations.wait", `len(d.waiting) >= maxWaiting ||`, ``}},
		Checks:    []Check{test("relay", "TestTooManyMessagesWait/messages", "the sink says how many wait")},
	},
	{
		Name:      "a replay moves the cursor",
		Breaks:    "an event is never published, because a replay has moved the cursor past it",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits: []Edit{{"relay.replayPage.send", `		page.counts.repeated += page.dropped() - before
`, `		page.counts.repeated += page.dropped() - before
		page.o.move(cursor{top: page.o.current().top + 1}, 0)
`}},
		Checks: []Check{test("relay", "TestAReplayPublishesAgain", "a replay has moved it")},
	},
	{
		Name:      "a cursor moves past a refused message that is no job",
		Breaks:    "a message that the broker has refused is never published, and is no dead letter",
		Invariant: "No event is lost",
		Edits: []Edit{{"relay.delivery.hold", `		d.held = append(d.held, i)
`, ``}},
		Checks: []Check{
			test("relay", "TestARefusedMessageHoldsItsKeyOnly", "there are 1 dead letters"),
			test("relay", "TestRefusedMessagesWithoutAKey", "there are 2 dead letters"),
		},
	},
	{
		Name:      "a key is free again too early",
		Breaks:    "later messages of a key overtake those that are jobs yet",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.ownership.lookAtHeld", `		if row.IsOver {`, `		if true {`}},
		Checks: []Check{
			test("relay", "TestOnRefused/hold", `got ["1" "4"] of key k`),
			row("E3", "messages held back: the refused ones and those behind them"),
		},
	},
	{
		Name:      "later messages overtake a refused one",
		Breaks:    "messages of a key are published although one before them is a job yet",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"relay.delivery.batch", `		case d.blocks.has(e) || blocked && e.Key != "" && d.o.isBlocked(keyOf(e)):`, `		case blocked && false:`}},
		Checks: []Check{
			test("relay", "TestARefusedMessageHoldsItsKeyOnly", "999 of 989 came"),
			test("relay", "TestOrderOutlivesRefusalsAndOwners", "or in another order"),
		},
	},
	{
		Name:      "a parked key goes on without its jobs",
		Breaks:    "a key that an operator is to unblock goes on by itself",
		Invariant: "A key's events keep their order",
		Edits:     []Edit{{"internal/sqlgen.LookAtHeld", `jobs.id IS NULL AND parked.key IS NULL AS is_over`, `jobs.id IS NULL AS is_over`}},
		Checks:    []Check{test("relay", "TestAParkedKeyOutlivesItsJobs", `got ["2"] of key k`)},
	},
	{
		Name:      "an event becomes a job again",
		Breaks:    "after a failover a message that somebody has dismissed is a dead letter again",
		Invariant: "An event becomes a job once",
		Edits:     []Edit{{"relay.ownership.hold", `chunk[i], ids[i] = i, events[i].ID.String()`, `chunk[i], ids[i] = i, outbox.NewID().String()`}},
		Checks:    []Check{test("relay", "TestARewindMakesNoJobTwice", `in vain: got ["5"] of gone`)},
	},
	{
		Name:      "whoever was the owner makes jobs",
		Breaks:    "a process that has lost the sink makes jobs of messages that its successor publishes",
		Invariant: "A sink has one owner",
		Edits: []Edit{{"relay.step.advance", `	case len(rows) == 0:
		return errNotOurs
	}
`, `	case len(rows) == 0:
		return nil
	}
`}},
		Checks: []Check{test("relay", "TestADeposedOwnerMakesNoJobs", "1 jobs were made")},
	},
	{
		Name:      "any number of refused messages",
		Breaks:    "a broker that refuses everything turns the whole log into jobs",
		Invariant: "What a sink refuses is bounded",
		Edits:     []Edit{{"relay.delivery.hold", `if len(d.held) < d.o.room() {`, `if true {`}},
		Checks:    []Check{test("relay", "TestTooManyRefusedMessagesStopTheSink", "in vain: the sink is stuck")},
	},
	{
		Name:      "a message without an answer is tried for ever",
		Breaks:    "a message that breaks the broker stops the sink",
		Invariant: "A refused message holds up its key only",
		Edits:     []Edit{{"relay.publisher.probeWithMessages", `o.unanswered.times >= unansweredLimit`, `false`}},
		Checks:    []Check{test("relay", "TestAMessageThatBreaksTheBrokerIsRefused", "in vain: the message and the one behind it are held")},
	},
	{
		Name:      "a message of the log without an answer is a refused one",
		Breaks:    "an outage in which the broker still answers makes jobs, and then dead letters, of all messages",
		Invariant: "A refused message holds up its key only",
		Edits: []Edit{{"relay.delivery.judge", `			d.o.unanswered.note(m, err)
`, `			d.refuse(ctx, m.index, &RefusedError{CodeUnanswered, err})
			return
`}},
		Checks: []Check{test("relay", "TestAReceiverThatFailsEachRequestIsAway", "messages are held in the outage")},
	},
	{
		Name:      "a held message without an answer has spent an attempt",
		Breaks:    "an outage in which the broker still answers makes dead letters of the messages behind a refused one",
		Invariant: "A refused message holds up its key only",
		Edits:     []Edit{{"relay.heldRunner.unanswered", `if c.isAtFault(m) {`, `if c.isAtFault(m) || err != nil {`}},
		Checks:    []Check{test("relay", "TestMessagesBehindARefusedOneOutliveAnOutage/hold,_silent_false", "messages are dead letters because of the outage")},
	},
	{
		Name:      "a held message without an answer never spends an attempt",
		Breaks:    "a message that breaks the broker is tried for ever, and under skip its key waits for it",
		Invariant: "A refused message holds up its key only",
		Edits:     []Edit{{"relay.heldRunner.unanswered", `if c.isAtFault(m) {`, `if c.isAtFault(m) && err == nil {`}},
		Checks:    []Check{test("relay", "TestAMessageThatBreaksTheBrokerIsRefused", "in vain: there are 1 dead letters")},
	},
	{
		Name:      "a batch without an answer is tried whole again",
		Breaks:    "a sink that is too slow for a full batch never gets one through",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.publisher.work", `most = max(1, failure.messages/2)`, `most = maxBatch`}},
		Checks:    []Check{test("relay", "TestABatchThatIsTooMuchIsDivided", "of 3000 came")},
	},
	{
		Name:      "a destination without its tenant",
		Breaks:    "a consumer of one tenant's subject gets the events of all",
		Invariant: "Tenants see their own",
		Edits:     []Edit{{"relay.parsePlaceholder", `return e.Tenant.String(), nil }`, `return "", nil }`}},
		Checks:    []Check{test("relay", "TestTemplatesAreFilled", "shop.{tenant}")},
	},
	{
		Name:      "an outage does not end",
		Breaks:    "a sink stays stopped although its broker is back",
		Invariant: "No event is lost",
		Edits: []Edit{{"relay.publisher.probeWithMessages", `	if err := p.probe(ctx); err != nil {
		return failureOf(err)
	}
`, `	if why := o.outage(); why != nil {
		return failureOf(errors.New(why.message))
	}
`}},
		Checks: []Check{test("relay", "TestAnOutageLosesNothingAndShows", `want ["1"`)},
	},
}
