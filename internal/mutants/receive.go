package mutants

var receive = []Mutant{{
	Name:      "inbox outside the transaction",
	Breaks:    "a message counts as handled although its effect was rolled back",
	Invariant: "Atomic",
	Edits: []Edit{
		{"inbox/once.go", `	n, err := sqlgen.New(tx).ReceiveMessage(`, `	if t, ok := tx.(pgx.Tx); ok {
		conn, err := pgx.ConnectConfig(ctx, t.Conn().Config())
		if err != nil {
			return false, err
		}
		defer conn.Close(ctx)
		tx = conn
	}
	n, err := sqlgen.New(tx).ReceiveMessage(`},
		{"inbox/once.go", `	"github.com/jackc/pgx/v5/pgconn"
`, `	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
`},
	},
	Checks: []Check{
		test("inbox", "TestRedeliveriesHaveOneEffect", "want 500 of 500"),
		test("inbox", "TestASecondTransactionWaitsForTheFirst/and_is_the_first_if_that_rolls_back", "first = false, want true"),
		row("A4", "L3: effects missing"),
	},
}}
