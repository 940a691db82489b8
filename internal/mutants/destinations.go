package mutants

const (
	itsKeyOnly = "A refused message holds up its key only"
	bounded    = "What a sink refuses is bounded"
)

// destinations are bugs of what happens to messages whose destinations accept nothing, and of answers that say so.
var destinations = []Mutant{
	{
		Name:      "a silent destination refuses its messages",
		Breaks:    "all messages to a receiver that hangs become dead letters, one after the other, while others answer",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay.delivery.silence", `same := accepted == unknown.destination`, `same := true`}},
		Checks: []Check{
			test("relay", "TestASilentDestinationHoldsUpNoOther", "the sink shows that a destination is silent"),
		},
	},
	{
		Name:      "all silent destinations are tried in each round",
		Breaks:    "ten receivers that hang delay every other message of their sink by 100 seconds",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay.destinations.shutUntried", `if d.turn == destination {`, `if true {`}},
		Checks: []Check{
			test("relay", "TestSeveralSilentDestinationsHoldUpNoOther", "followed that of another destination at once"),
		},
	},
	{
		Name:      "the same silent destination has every turn",
		Breaks:    "a receiver that answers again stays without messages while another one hangs",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay.destinations.nextTurn", `s.turn < d.silent[next].turn`, `s.turn > d.silent[next].turn`}},
		Checks:    []Check{test("relay", "TestSeveralSilentDestinationsHoldUpNoOther", "each of them is tried")},
	},
	{
		Name:      "a message that breaks the destination of its key waits for ever",
		Breaks:    "where each key has a receiver of its own, nobody ever learns of a message that breaks it",
		Invariant: itsKeyOnly,
		Edits: []Edit{{
			"relay.destinations.isAtFault", `isAlone := !s.others && d.now().Sub(s.since) > noDestinationLimit`,
			`isAlone := false`,
		}},
		Checks: []Check{
			test("relay", "TestAMessageThatBreaksTheDestinationOfItsKeyIsRefused", "the message and the one behind it are held"),
		},
	},
	{
		Name:      "a silent destination of several keys is given up after an hour",
		Breaks:    "an outage of more than an hour makes a dead letter of a message that is not at fault",
		Invariant: itsKeyOnly,
		Edits: []Edit{{
			"relay.destinations.isAtFault", `!s.others && d.now().Sub(s.since) > noDestinationLimit`,
			`d.now().Sub(s.since) > noDestinationLimit`,
		}},
		Checks: []Check{
			test("relay", "TestASilentDestinationOfSeveralKeysMayStaySilent", "because their destination is silent"),
		},
	},
	{
		Name:      "a page looks at every hole",
		Breaks:    "a sink for which thousands of messages wait keeps the database busy, the more so the more they are",
		Invariant: bounded,
		Edits:     []Edit{{"relay.logReader.atHoles", `positions < enough`, `enough > 0`}},
		Checks:    []Check{test("relay", "TestAPageLooksAtTheHolesThatFillIt", "look-ups, want at most")},
	},
	{
		Name:      "a page that looks at some holes counts as one that looks at all",
		Breaks:    "what waits behind many holes that stay empty is never published",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.logReader.read", `} else if n < len(holes) {`, `} else if n < 0 {`}},
		Checks:    []Check{test("relay", "TestAPageLooksAtSomeOfManyHoles", "pages are the events at")},
	},
	{
		Name:      "a transaction that ends between two looks is seen in parts",
		Breaks:    "an event overtakes one of its key and transaction, at whose hole the page before had looked",
		Invariant: "A key's events keep their order",
		Edits: []Edit{{
			"relay.logReader.read", `if len(c.mayBeFilled(now)) > len(holes) {`, `if len(c.mayBeFilled(now)) < 0 {`,
		}},
		Checks: []Check{test("relay", "TestATransactionIsNotSeenInParts", "the events come in the order")},
	},
	{
		Name:      "a page that looks at some new holes gives them no bound",
		Breaks:    "the next page looks at the same ones, and nothing behind them is read",
		Invariant: "No event is lost",
		Edits:     []Edit{{"relay.logReader.read", `found.more && !found.after.isNumbered()`, `false`}},
		Checks:    []Check{test("relay", "TestAPageLooksAtSomeOfManyHoles", "in 100 pages are the events at")},
	},
	{
		Name:      "a page looks at all holes of a long transaction",
		Breaks:    "with 100 000 holes no page comes in time, and the sink loses its owner again and again, for ever",
		Invariant: "A hole in the log is closed",
		Edits: []Edit{
			{"relay.logReader.atHoles", `2*enough > int64(maxLook)`, `false`},
			{"relay.logReader.atHoles", ` && positions < int64(maxLook) && `, ` && `},
		},
		Checks: []Check{test("relay", "TestAPageLooksAtSomeOfManyHoles", "in 1 pages are the events at")},
	},
	{
		Name:      "a sink that too many messages wait for goes by the code of their destination",
		Breaks:    "an operator is told that a queue is full, and not that everything else of the sink stands still",
		Invariant: bounded,
		Edits:     []Edit{{"relay.destinations.tooMany", `code: CodeWaiting`, `code: d.why.code`}},
		Checks:    []Check{test("relay", "TestTooManyMessagesWait/messages", "the sink says how many wait")},
	},
	{
		Name:      "messages that wait for a destination count as holes of open transactions",
		Breaks:    "beside a long transaction, every other message of a sink waits for a destination that is away",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay.publisher.follow", `late := pages == 0 && len(c.holes) > 0`, `late := false`}},
		Checks:    []Check{test("relay", "TestWhatWaitsLeavesRoomForHoles", "a newer message is published")},
	},
	{
		Name:      "an outage of a destination hides that a sink waits for transactions",
		Breaks:    "an operator is told that a queue is full, and not that everything else of the sink stands still",
		Invariant: bounded,
		Edits: []Edit{{
			"relay.ownership.shown", `(o.away == nil || isOfDestination(o.away.code) && o.away.code != CodeWaiting)`, `o.away == nil`,
		}},
		Checks: []Check{
			test("relay", "TestASinkWaitsForTransactionsThroughRounds", `the sink shows the code "relay_`),
			test("relay", "TestAWaitKeepsTheOutageOfADestination", `want "relay_holes"`),
		},
	},
	{
		Name:      "a silent destination is remembered for ever",
		Breaks:    "where each key has a destination of its own, the memory of a process grows with each outage",
		Invariant: bounded,
		Edits:     []Edit{{"relay.destinations.endRound", `return now.Sub(s.met) > noDestinationLimit`, `return false`}},
		Checks: []Check{
			test("relay", "TestASilentDestinationWithoutMessagesIsForgotten", "for which nothing waits is still silent"),
		},
	},
	{
		Name:      "a held message without a route has the code of a refused one",
		Breaks:    "an operator who gives a destination a sink of its own dismisses none of its messages, or too many",
		Invariant: bounded,
		Edits: []Edit{{
			"relay.heldRunner.messageOfJob", `dispatcher.WithCode(CodeNoRoute,`, `dispatcher.WithCode(CodeRefused,`,
		}},
		Checks: []Check{test("relay", "TestAHeldMessageWithoutARoute", `want "relay_no_route"`)},
	},
	{
		Name:      "any number of bytes wait for a destination",
		Breaks:    "a destination of large messages that is away takes gigabytes of the database's time in each round",
		Invariant: bounded,
		Edits:     []Edit{{"relay.destinations.wait", ` || d.bytes >= maxWaitingBytes`, ``}},
		Checks:    []Check{test("relay", "TestTooManyMessagesWait/bytes", "the sink says how many wait")},
	},
	{
		Name:      "a batch goes on behind a message that may not wait",
		Breaks:    "while a sink stands still, what it publishes leaves more holes around what waits than may wait",
		Invariant: bounded,
		Edits: []Edit{{"relay.delivery.batch", `				break events
			}
		case err == nil && destinations.isTrial`, `				waits.add(e)
			}
		case err == nil && destinations.isTrial`}},
		Checks: []Check{test("relay", "TestNothingNewerIsPublishedWhileTooManyWait", "messages are published")},
	},
	{
		Name:      "a run of holes counts as one",
		Breaks:    "a page of messages that wait side by side has the database read and sort all of them, again and again",
		Invariant: bounded,
		Edits: []Edit{{
			"relay.logReader.atHoles", `positions += holes[n].high - holes[n].low + 1`, `positions++`,
		}},
		Checks: []Check{test("relay", "TestAPageLooksAtTheRunsThatFillIt", "events are fetched for a page")},
	},
	{
		Name:      "a sink that stands still looks in each round as if it went on",
		Breaks:    "an alert on a sink for which too many messages wait ends and begins again with each round",
		Invariant: bounded,
		Edits: []Edit{{
			"relay.ownership.showShut", `case before && was.code == CodeWaiting && !o.destinations.newer:`,
			`case false:`,
		}},
		Checks: []Check{
			test("relay", "TestNothingNewerIsPublishedWhileTooManyWait", "while it reads again what waits, the sink has the code"),
		},
	},
	{
		Name:      "an outage of a destination has no end",
		Breaks:    "a sink shows for ever that a destination accepts nothing, although it has accepted all that waited",
		Invariant: bounded,
		Edits:     []Edit{{"relay.ownership.showShut", `case why == nil && known && before:`, `case why == nil && known && before && false:`}},
		Checks: []Check{
			test("relay", "TestADestinationThatIsAwayHoldsUpNoOther/relay_full$", `the sink shows the code `),
		},
	},
	{
		Name:      "a sink that is stuck does not name the key that fills it",
		Breaks:    "an operator searches ten thousand messages for the one that the others are behind",
		Invariant: bounded,
		Edits:     []Edit{{"relay.ownership.busiestKey", `n > o.publisher.maxHeld/2`, `n > o.publisher.maxHeld`}},
		Checks:    []Check{test("relay", "TestTooManyRefusedMessagesStopTheSink", "the sink is stuck")},
	},
	{
		Name:      "a partition without a leader is its topic",
		Breaks:    "the keys of every partition of a topic wait for one that has no leader",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay.sinkClient.placeOf", `part != "" {`, `part != "" && false {`}},
		Checks:    []Check{test("relay", "TestAPartitionWithoutALeaderHoldsUpNoOther", "of other, want")},
	},
	{
		Name:      "Kafka's sink refuses a topic for one partition",
		Breaks:    "of a batch to Kafka, messages to partitions that have a leader are left out",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay/kafka.publication.place", `return m.Destination + "/" + part`, `return m.Destination`}},
		Checks:    []Check{test("relay/kafka", "TestAPartitionFailsOnItsOwn", "is refused: true")},
	},
	{
		Name:      "a stream without a leader is an outage of NATS",
		Breaks:    "a stream whose only server is down stops every other stream of the sink",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay/nats.acceptsNothing", `Code: relay.CodeNoLeader`, `Code: relay.CodeUnavailable`}},
		Checks: []Check{
			test("relay/nats", "TestAStreamWithoutALeaderStopsNoOther", "a message to the stream without a leader"),
		},
	},
	{
		Name:      "an answer of 4xx that has no meaning of its own is no answer",
		Breaks:    "a message that its receiver has examined and does not want holds up its sink",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay/webhook.classify", `return refused(relay.CodeRefused)`, `return failed`}},
		Checks:    []Check{test("relay/webhook", "TestWhatAnAnswerSaysOfAMessage", "402 is unknown")},
	},
	{
		Name:      "a receiver that is still busy with a request refuses it",
		Breaks:    "a message that is sent again while its first request is in progress becomes a dead letter",
		Invariant: itsKeyOnly,
		Edits:     []Edit{{"relay/webhook.classify", `if again {`, `if false {`}},
		Checks:    []Check{test("relay/webhook", "TestWhatAnAnswerSaysOfAMessage", "409 with Retry-After is refused")},
	},
	{
		Name:      "a receiver that is locked refuses its message",
		Breaks:    "messages become dead letters because their receiver, or a proxy's connection, was not ready for them",
		Invariant: itsKeyOnly,
		Edits: []Edit{{
			"relay/webhook.classify", `http.StatusTooEarly, http.StatusLocked, http.StatusMisdirectedRequest:`,
			`http.StatusTooEarly:`,
		}},
		Checks: []Check{
			test("relay/webhook", "TestWhatAnAnswerSaysOfAMessage", "423 is refused"),
			test("relay/webhook", "TestWhatAnAnswerSaysOfAMessage", "421 is refused"),
		},
	},
	{
		Name:      "a pause waits for the end of the page",
		Breaks:    "a sink of which each message takes a batch sends a thousand of them after it was paused",
		Invariant: "A sink has one owner",
		Edits:     []Edit{{"relay.send", `d.again && reading.Err() == nil && o.isLive()`, `d.again && reading.Err() == nil`}},
		Checks:    []Check{test("relay", "TestAPauseWaitsForOneBatchOfAPage/pause", "batches are sent afterwards")},
	},
	{
		Name:      "a stop waits for the end of the page",
		Breaks:    "a process is killed in the middle of a page, because each of its messages takes a batch",
		Invariant: "A sink has one owner",
		Edits:     []Edit{{"relay.send", `d.again && reading.Err() == nil && o.isLive()`, `d.again && o.isLive()`}},
		Checks:    []Check{test("relay", "TestAPauseWaitsForOneBatchOfAPage/stop", "the sink is not at rest")},
	},
	{
		Name:      "a replay that stops what is new and fails does so for ever",
		Breaks:    "one message that a destination does not accept stops every new event of the sink",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits:     []Edit{{"relay.replay.doubtAlone", `if r.failed >= unansweredLimit {`, `if false {`}},
		Checks:    []Check{test("relay", "TestAReplayThatCannotGoOnStopsNothing", `"3" "4"]`)},
	},
	{
		Name:      "an outage ends what a replay stops",
		Breaks:    "a broker that is away for some seconds lets new events past a replay with --stop-live",
		Invariant: "A replay publishes what was asked for, beside what is new",
		Edits: []Edit{{
			"relay.replay.doubtAlone", `ok && page.counts.published == 0 && (f.unknown || isOfDestination(f.code))`,
			`ok || f == nil`,
		}},
		Checks: []Check{test("relay", "TestAReplayStopsNewEventsThroughAnOutage", "a new event was sent in the outage")},
	},
}
