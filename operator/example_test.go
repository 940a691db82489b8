package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/operator"
)

// The mail server is repaired. How do I run all jobs again that failed because of it, without bringing it down a second
// time?
func ExampleOperator_ReplayDeadLetters() {
	replay := func(ctx context.Context, pool *pgxpool.Pool) error {
		o := operator.New(pool).As(operator.Actor{Name: "ada"}).Because("the mail server is mended")
		groups, err := o.DeadLetterGroups(ctx, operator.DeadLetterFilter{Kind: "mail.send"}, 1)
		if err != nil || len(groups) == 0 {
			return err
		}
		alike := operator.DeadLetterFilter{Fingerprint: groups[0].Fingerprint} // the largest group
		for progress, err := range o.ReplayDeadLetters(ctx, alike, 10) {       // ten a second
			if err != nil {
				return fmt.Errorf("go on later with FailedUntil %s: %w", progress.FailedUntil, err)
			}
			fmt.Printf("%d of %d\n", progress.Done, progress.Matched)
		}
		return nil
	}
	_ = replay
}
