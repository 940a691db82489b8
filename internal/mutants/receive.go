package mutants

const oneEffectByPosition = "A message has one effect, by its position"

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
		row("A4", "L3: effects missing"),
	},
}, {
	Name:      "a position without its epoch",
	Breaks:    "a process whose partition another has taken over moves the position, and makes effects beside it",
	Invariant: oneEffectByPosition,
	Edits: []Edit{{"internal/sqlgen.AdvancePosition", `  AND epoch = $5
`, `  AND $5::bigint > 0
`}},
	Checks: []Check{test("inbox", "TestAZombieIsFenced", "isNew = true, <nil>")},
}, {
	Name:      "a seek that leaves the epoch",
	Breaks:    "two processes that have taken a partition over, one after the other, both move its position",
	Invariant: oneEffectByPosition,
	Edits:     []Edit{{"internal/sqlgen.SeekPosition", `SET epoch = p.epoch + 1`, `SET epoch = p.epoch`}},
	Checks:    []Check{test("inbox", "TestAZombieIsFenced", "isNew = true, <nil>")},
}, {
	Name:      "a position that skips",
	Breaks:    "a message whose transaction was rolled back is passed over by the next one",
	Invariant: oneEffectByPosition,
	Edits:     []Edit{{"inbox.Position.advance", `	least := p.last`, `	least := int64(-1)`}},
	Checks:    []Check{test("inbox", "TestWhatWasRolledBackIsHandledAgainAndNotSkipped", "isNew = true, <nil>")},
}}
