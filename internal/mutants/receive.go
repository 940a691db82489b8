package mutants

const (
	oneEffectByPosition = "A message has one effect, by its position"
	oneJob              = "A message that a bridge fetches is one job"
)

// receive are bugs of consumers.
var receive = []Mutant{{
	Name:      "inbox outside the transaction",
	Breaks:    "a message counts as handled although its effect was rolled back",
	Invariant: "Atomic",
	Edits: []Edit{
		{"inbox.Once", `	n, err := sqlgen.New(tx).ReceiveMessage(`, `	apart, end := sqlgen.Apart(ctx, tx)
	defer end()
	n, err := apart.ReceiveMessage(`},
		// Here, as inbox does not import pgx.
		{"internal/sqlgen.New", `func New(db DBTX) *Queries {`, `func Apart(ctx context.Context, db DBTX) (*Queries, func()) {
	tx, ok := db.(pgx.Tx)
	if !ok {
		return New(db), func() {}
	}
	conn, err := pgx.ConnectConfig(ctx, tx.Conn().Config())
	if err != nil {
		panic(err)
	}
	return New(conn), func() { _ = conn.Close(ctx) }
}

func New(db DBTX) *Queries {`},
	},
	Checks: []Check{
		test("inbox", "TestRedeliveriesHaveOneEffect", "want 500 of 500"),
		test("inbox", "TestASecondTransactionWaitsForTheFirst/and_is_the_first_if_that_rolls_back", "first = false, want true"),
		row("A4", "L3: succeeded jobs without their effect"),
	},
}, {
	Name:      "a position without its epoch",
	Breaks:    "a process whose partition another has taken over moves the position, and makes effects beside it",
	Invariant: oneEffectByPosition,
	Edits: []Edit{{"internal/sqlgen.AdvancePosition", `  AND epoch = $5
`, `  AND $5::bigint > 0
`}},
	Checks: []Check{test("inbox", "TestAZombieIsFenced", "first = true, <nil>")},
}, {
	Name:      "a seek that leaves the epoch",
	Breaks:    "two processes that have taken a partition over, one after the other, both move its position",
	Invariant: oneEffectByPosition,
	Edits:     []Edit{{"internal/sqlgen.SeekPosition", `SET epoch = p.epoch + 1`, `SET epoch = p.epoch`}},
	Checks:    []Check{test("inbox", "TestAZombieIsFenced", "first = true, <nil>")},
}, {
	Name:      "a position that skips",
	Breaks:    "a message whose transaction was rolled back is passed over by the next one",
	Invariant: oneEffectByPosition,
	Edits:     []Edit{{"inbox.Position.advance", `	if i > 0 {`, `	if i < 0 {`}},
	Checks:    []Check{test("inbox", "TestWhatWasRolledBackIsHandledAgainAndNotSkipped", "first = true, <nil>")},
}, {
	Name:      "ack before commit",
	Breaks:    "a message whose job the database does not take, or whose bridge dies, is lost",
	Invariant: oneJob,
	Edits: []Edit{{"bridge.bridge.step", `	if err := b.storeUntilDone(`, `	b.ack(ctx, len(batch))
	if err := b.storeUntilDone(`}},
	Checks: []Check{
		test("bridge", "TestAMessageIsAcknowledgedAfterTheCommit", "that are acknowledged 0 are jobs"),
		test("bridge", "TestAZombieIsFenced", "it has acknowledged 10 messages"),
	},
}, {
	Name:      "a bridge without its epoch",
	Breaks:    "a process that was thought dead stores older messages of a key after newer ones",
	Invariant: oneJob,
	Edits: []Edit{{"internal/sqlgen.KeepBridge", `  AND epoch = $4
`, `  AND $4::bigint > 0
`}},
	Checks: []Check{test("bridge", "TestAZombieIsFenced", "not within 1m0s: it finds out")},
}, {
	Name:      "a job without its message's id",
	Breaks:    "a message that comes again is a second job",
	Invariant: oneJob,
	Edits: []Edit{{"bridge.BridgeConfig.job", `	options.IdempotencyKey = m.idempotencyKey()
`, ``}},
	Checks: []Check{test("bridge", "TestAnswersToCommitsAreLost", "of 200 messages")},
}, {
	Name:      "an undecodable message is tried again",
	Breaks:    "a message of which no job can be made comes for ever, and nothing behind it",
	Invariant: oneJob,
	Edits: []Edit{{"bridge.bridge.store", `		letter, err := b.letter(&batch[i], reason)
		if err != nil {`, `		letter, err := b.letter(&batch[i], reason)
		if err = reason; err != nil {`}},
	Checks: []Check{test("bridge", "TestAMessageThatCannotBeAJobIsADeadLetter", "not within 1m0s: all are acknowledged")},
}, {
	Name:      "newer messages wait for nobody",
	Breaks:    "after the death of a process, jobs of a key are stored before those of messages that it had",
	Invariant: oneJob,
	Edits:     []Edit{{"relay/nats.returning.over", `r.outstanding <= 0 ||`, `r.outstanding <= 1000 ||`}},
	Checks:    []Check{test("relay/nats", "TestMessagesAreReturnedInTheOrderOfTheStream", "batch 0: [4 5], want []")},
}, {
	Name:      "a delivery that nobody got is not noticed",
	Breaks:    "what the server delivered to a connection that has ended comes after newer messages",
	Invariant: oneJob,
	Edits:     []Edit{{"relay/nats.returning.keep", `missed > 0 {`, `missed > 1000 {`}},
	Checks:    []Check{test("relay/nats", "TestMessagesAreReturnedInTheOrderOfTheStream/one_was_delivered_to_a_connection_that_has_ended", "batch 0: [5], want []")},
}, {
	Name:      "messages are returned as they come",
	Breaks:    "what others had comes again in any order, and jobs of a key are stored in that one",
	Invariant: oneJob,
	Edits:     []Edit{{"relay/nats.returning.pass", `cmp.Compare(a.stream, b.stream)`, `cmp.Compare(0, 0)`}, {"relay/nats.returning.pass", `func(a, b place)`, `func(_, _ place)`}},
	Checks:    []Check{test("relay/nats", "TestMessagesAreReturnedInTheOrderOfTheStream/two,_by_turns", "batch 3: [5 7 4 6], want [4 5 6 7]")},
}, {
	Name:      "what is kept counts as come again",
	Breaks:    "newer messages that are kept for so long that they come again are returned before the older ones",
	Invariant: oneJob,
	Edits: []Edit{{"relay/nats.returning.keep", `	if r.has[stream] {
		return // to acknowledge the first is enough
	}
`, ``}},
	Checks: []Check{test("relay/nats", "TestMessagesAreReturnedInTheOrderOfTheStream/one_that_we_keep_comes_again", "batch 1: [4 4 5], want []")},
}, {
	Name:      "outstanding messages are given AckWait and no more",
	Breaks:    "the server sends them a little later, and newer ones have overtaken them",
	Invariant: oneJob,
	Edits:     []Edit{{"relay/nats.newReturning", `info.Config.AckWait + redeliverySlack`, `info.Config.AckWait + redeliverySlack/100`}},
	Checks:    []Check{test("relay/nats", "TestOutstandingMessagesAreWaitedForLongerThanAckWait", "more than AckWait, want seconds")},
}}
