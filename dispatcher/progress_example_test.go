package dispatcher_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

type Import struct{ Rows int }

func (Import) Kind() string { return "import" }

// Position is a checkpoint.
type Position struct{ Row int }

// How does a long job go on where it was, instead of at the beginning?
func Example_checkpoint() {
	crashed := errors.New("the power is off")
	work(Import{Rows: 5}, func(ctx context.Context, job *outbox.Job[Import]) error {
		at, _, err := outbox.LoadCheckpoint[Position](ctx, job.Claimed)
		if err != nil {
			return err
		}
		for at.Row < job.Args.Rows {
			if job.Attempt == 1 && at.Row == 3 {
				return crashed
			}
			at.Row++
			fmt.Println("attempt", job.Attempt, "imports row", at.Row)
			if err := outbox.SaveCheckpoint(ctx, job.Claimed, at); err != nil {
				return err
			}
			if err := job.Progress(ctx, int64(at.Row), int64(job.Args.Rows), "importing"); err != nil {
				return err // the handler is to stop
			}
		}
		return nil
	})
	// Output:
	// attempt 1 imports row 1
	// attempt 1 imports row 2
	// attempt 1 imports row 3
	// attempt 2 imports row 4
	// attempt 2 imports row 5
}

// How does a job avoid doing its first part again when its second part fails?
func ExampleStep() {
	work(Import{}, func(ctx context.Context, job *outbox.Job[Import]) error {
		ticket, err := dispatcher.Step(ctx, job.Claimed, "open-ticket", func(context.Context) (string, error) {
			fmt.Println("opening a ticket")
			return "T-1", nil
		})
		if err != nil {
			return err
		}
		fmt.Println("attempt", job.Attempt, "has ticket", ticket)
		if job.Attempt == 1 {
			return errors.New("the mail server is away")
		}
		return nil
	})
	// Output:
	// opening a ticket
	// attempt 1 has ticket T-1
	// attempt 2 has ticket T-1
}

// How does a job change my tables exactly once, although its later part fails and is tried again?
func ExampleStepTx() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	if _, err := pool.Exec(ctx, `CREATE TABLE imported (rows integer)`); err != nil {
		panic(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[Import]) error {
		rows, err := dispatcher.StepTx(ctx, job.Claimed, pool, "insert", func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, `INSERT INTO imported VALUES ($1)`, job.Args.Rows)
			return job.Args.Rows, err // commits with the step's result
		})
		if err != nil {
			return err
		}
		fmt.Println("attempt", job.Attempt, "has", rows, "rows")
		if job.Attempt == 1 {
			return errors.New("the mail server is away")
		}
		return nil
	}, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)})

	if _, err := outbox.Enqueue(ctx, pool, Import{Rows: 5}, outbox.Options{}); err != nil {
		panic(err)
	}
	workOne(ctx, &mux, pool)
	var times int
	err := pool.QueryRow(ctx, `SELECT count(*) FROM imported`).Scan(&times)
	fmt.Println("imported", times, "time", err)
	// Output:
	// attempt 1 has 5 rows
	// attempt 2 has 5 rows
	// imported 1 time <nil>
}
