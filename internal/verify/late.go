package verify

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// behind is how far claims must have passed the position of a job that is committed late: further than any claim looks
// back, unless it starts at the front.
const behind = 6 * time.Second

// commitLate opens two transactions, each with a job, and commits them when every worker has run jobs that came later.
// No NOTIFY is sent, and all claims have passed the jobs' positions:
//
//	clerk      begin: a job due now, one due an hour ago                             commit
//	workers                                                claim what came 6 s later         find both
//
// The ledger records the commits, so that these jobs, too, must start in time.
func (r *Run) commitLate(ctx context.Context, workers int) error {
	clerk, err := r.newClerk()
	if err != nil {
		return err
	}
	defer clerk.close()
	silent := outbox.NewProducer(r.DB, outbox.NotifyOff)
	var late []*order
	var begun time.Time
	for _, options := range []outbox.Options{{}, {RunAt: time.Now().Add(-time.Hour)}} {
		o, err := clerk.begin(ctx, silent, probe.Task{Do: "effect"}, options)
		if err != nil {
			return err
		}
		defer o.rollBack(ctx) // does nothing once the order is committed
		late = append(late, o)
		// The query makes the Producer send the statements that it has buffered.
		if err := o.tx.QueryRow(ctx, `SELECT now()`).Scan(&begun); err != nil {
			return err
		}
	}
	if err := r.Await(ctx, patience, "later jobs to be done by every worker", func(ctx context.Context) (bool, error) {
		var went int
		err := r.DB.QueryRow(ctx, `SELECT count(DISTINCT moves.owner) FROM verify.moves JOIN outbox.history ON history.id = moves.job
			WHERE moves.became = 'running' AND history.run_at > $1`, begun.Add(behind)).Scan(&went)
		return went >= workers, err
	}); err != nil {
		return err
	}
	healed := r.Faults.Begin("late commit", "")
	for _, o := range late {
		if _, err := o.commit(ctx); err != nil {
			return err
		}
	}
	healed()
	return r.Await(ctx, patience, "the jobs of late commits to be done", func(ctx context.Context) (bool, error) {
		var done int
		err := r.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.history WHERE id = ANY ($1::uuid[])`,
			[]string{late[0].job.String(), late[1].job.String()}).Scan(&done)
		return done == len(late), err
	})
}
