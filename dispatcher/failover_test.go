package dispatcher_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claimAgain does what a failover to a standby that had not received a job's claim leads to: the next claim, by the
// given worker, finds the job as it was before, and gives it the same epoch and the same attempt.
func claimAgain(t *testing.T, db outbox.DB, l lease, worker string) lease {
	t.Helper()
	again := l
	if err := db.QueryRow(t.Context(), `
		UPDATE outbox.jobs
		SET lease_owner = $2, started_at = clock_timestamp(), lease_expires_at = clock_timestamp() + interval '1 hour'
		WHERE id = $1 AND epoch = $3 AND status = 'running'
		RETURNING started_at`, l.id, worker, l.epoch).Scan(&again.startedAt); err != nil {
		t.Fatalf("claim the job again: %v", err)
	}
	return again
}

// Two claims of a job have the same epoch if the first was lost in a failover. Whatever the holder of the first writes
// changes nothing, and the second is not affected: also if one worker has both.
func TestAClaimLostInAFailoverIsFenced(t *testing.T) {
	inEachFlow(t, func(t *testing.T, db *pgxpool.Pool, flow outbox.Options) {
		exec(t, db, `DROP TABLE IF EXISTS effects`) // of the flow before
		ledger(t, db)
		for write, try := range workerWrites {
			for _, worker := range []string{"another worker", "worker"} {
				t.Run(write+" after the claim of "+worker, func(t *testing.T) {
					exec(t, db, `DELETE FROM outbox.jobs`)
					exec(t, db, `DELETE FROM outbox.history`)
					enqueue(t, db, probe{}, flow)
					lost := claim(t, db, "worker")
					held := claimAgain(t, db, lost, worker)
					before := everything(t, db)
					if took, err := try(t.Context(), db, lost); took || err != nil {
						t.Errorf("the lost claim: took effect = %v, error = %v; want no effect and no error", took, err)
					}
					if after := everything(t, db); after != before {
						t.Errorf("stored before:\n%s\nafter:\n%s", before, after)
					}
					if took, err := try(t.Context(), db, held); !took || err != nil {
						t.Errorf("the claim after it: took effect = %v, error = %v; want an effect", took, err)
					}
				})
			}
		}
	})
}

// The job that the second claim holds is cancelled: the first learns nothing of that, and does not close it.
func TestAClaimLostInAFailoverIsNotCancelled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{})
	lost := claim(t, db, "worker")
	held := claimAgain(t, db, lost, "worker")
	cancelJob(t, db, lost.id, "running")
	for _, c := range []struct {
		claim lease
		want  int
	}{{lost, 0}, {held, 1}} {
		ids, epochs := []pgtype.UUID{pgID(c.claim.id)}, []int64{c.claim.epoch}
		asked, err := sqlgen.New(db).ListCancelRequests(t.Context(), sqlgen.ListCancelRequestsParams{
			Ids: ids, Epochs: epochs, Starts: c.claim.starts(),
		})
		if err != nil || len(asked) != c.want {
			t.Errorf("the claim of %v is asked to stop %d times, %v; want %d", c.claim.startedAt, len(asked), err, c.want)
		}
		closed, err := sqlgen.New(db).CloseAttempts(t.Context(), sqlgen.CloseAttemptsParams{
			Worker: "worker", Ids: ids, Epochs: epochs, Starts: c.claim.starts(),
			ErrorCodes: []string{"late"}, ErrorMessages: []string{"late"}, Stacks: []string{""},
		})
		if err != nil || len(closed) != c.want {
			t.Errorf("the claim of %v closes %d jobs, %v; want %d", c.claim.startedAt, len(closed), err, c.want)
		}
	}
}
