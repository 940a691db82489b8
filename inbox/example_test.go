package inbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// How does a consumer credit an account once, however often the message comes?
func ExampleOnce() {
	ctx := context.Background()
	db, end := pgtest.Example()
	defer end()
	_, err := db.Exec(ctx, `CREATE TABLE accounts (name text, balance int); INSERT INTO accounts VALUES ('ada', 0)`)
	if err != nil {
		fmt.Println(err)
		return
	}

	receive := func(messageID string) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			first, err := inbox.Once(ctx, tx, "accounts", messageID)
			if err != nil || !first {
				return err // nil for a repeat: acknowledge it
			}
			_, err = tx.Exec(ctx, `UPDATE accounts SET balance = balance + 10 WHERE name = 'ada'`)
			return err
		})
	}
	for _, id := range []string{"payment-1", "payment-1", "payment-2", "payment-1"} {
		if err := receive(id); err != nil {
			fmt.Println(err)
		}
	}

	var balance int
	err = db.QueryRow(ctx, `SELECT balance FROM accounts WHERE name = 'ada'`).Scan(&balance)
	fmt.Println(balance, err)
	// Output: 20 <nil>
}
