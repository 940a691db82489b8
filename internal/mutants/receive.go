package mutants

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
}}
