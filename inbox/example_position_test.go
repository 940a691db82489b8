package inbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// How does a consumer of a Kafka partition, or of a JetStream stream by an ordered consumer, credit an account once for
// each message, with one row for all of them?
func ExamplePosition() {
	ctx := context.Background()
	db, end := pgtest.Example()
	defer end()
	_, err := db.Exec(ctx, `CREATE TABLE accounts (name text, balance int); INSERT INTO accounts VALUES ('ada', 0)`)
	if err != nil {
		fmt.Println(err)
		return
	}
	messages := []int{10, 20, 30} // the broker's messages, at the positions 0, 1 and 2

	// A process that is assigned the partition reads on from where the previous one stopped.
	process := func(last int64) error {
		position, err := inbox.Seek(ctx, db, inbox.Partition{Consumer: "accounts", Source: "payments", Number: 0})
		if err != nil {
			return err
		}
		for at := position.Next(); at <= last; at++ {
			err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				first, err := position.Advance(ctx, tx, at)
				if err != nil || !first {
					return err
				}
				_, err = tx.Exec(ctx, `UPDATE accounts SET balance = balance + $1 WHERE name = 'ada'`, messages[at])
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Println(process(1), process(2), process(2))

	var balance int
	err = db.QueryRow(ctx, `SELECT balance FROM accounts WHERE name = 'ada'`).Scan(&balance)
	fmt.Println(balance, err)
	// Output:
	// <nil> <nil> <nil>
	// 60 <nil>
}
