package operator_test

import (
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Running jobs are counted by the time at which their leases lapse, from ten minutes ago on: what was before would be
// read over and over while an old snapshot is held, an entry of each job that has run since. A handler's transaction
// that has locked its job's row for longer keeps its lease beside it, and that job is counted like any other.
func TestRunningJobsAreCountedByRecentLeases(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	recent, held, stuck := enqueue(t, db, "mail", outbox.Options{}), enqueue(t, db, "mail", outbox.Options{}), enqueue(t, db, "mail", outbox.Options{})
	exec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v', '{default}', '{2}', '{mail}', true)`)
	for id, lapses := range map[outbox.ID]string{recent: "-9 minutes", held: "-11 minutes", stuck: "-11 minutes"} {
		exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w',
			started_at = now() - interval '1 hour' - CASE WHEN id = $3 THEN interval '1 hour' ELSE '0' END, lease_expires_at = now() + $2::interval WHERE id = $1`, id, lapses, held)
	}
	exec(t, db, `INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at) VALUES ($1, 1, now() + interval '15 s'), ($2, 0, now() + interval '15 s')`, held, stuck)
	waiting := enqueue(t, db, "mail", outbox.Options{})

	longest, err := o.LongestRunning(t.Context(), "default", outbox.ID{}, 0)
	if err != nil || len(longest) != 2 || longest[0].ID != held || longest[1].ID != recent {
		t.Errorf("what has run longest: %v, %v; want the held one, then the recent one", longest, err)
	}
	if workers, err := o.Workers(t.Context()); err != nil || len(workers) != 1 || workers[0].Running != 2 {
		t.Errorf("workers: %+v, %v; want one that runs two", workers, err)
	}
	e, err := o.Explain(t.Context(), waiting)
	if err != nil || len(e.Reasons) == 0 || e.Reasons[0].Code != operator.WhyWorkersBusy || e.Reasons[0].Evidence.Running != 2 {
		t.Errorf("the waiting job: %+v, %v; want the worker's two places to be taken", e.Reasons, err)
	}
	if e, err := o.Explain(t.Context(), stuck); err != nil || len(e.Reasons) == 0 || e.Reasons[0].Code != operator.WhyLeaseLapsed {
		t.Errorf("the job whose lease lapsed long ago: %+v, %v; want it said", e.Reasons, err)
	}
}

// A worker that is gone has left a transaction that has locked its job's row, so the reaper passes the job by. A queue
// in which one job may run is full of it, however long ago its lease lapsed, and Explain reports that.
func TestAJobThatFillsALimitedQueueIsCounted(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	stuck, over := enqueue(t, db, "mail", outbox.Options{}), enqueue(t, db, "mail", outbox.Options{})
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'gone',
		started_at = now() - interval '1 hour', lease_expires_at = now() - interval '50 minutes' WHERE id = $1`, stuck)
	exec(t, db, `INSERT INTO outbox.queues (queue, max_running) VALUES ('default', 1)`)
	exec(t, db, `INSERT INTO outbox.queue_usage (queue, running, counted_at) VALUES ('default', ARRAY[$1, $2]::uuid[], now() + interval '1 minute')`, stuck, over)
	exec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v', '{default}', '{2}', '{mail}', true)`)
	waiting := enqueue(t, db, "mail", outbox.Options{})
	for _, beside := range []bool{false, true} { // then its lease was extended beside its row, too
		if beside {
			exec(t, db, `INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at) VALUES ($1, 1, now() - interval '49 minutes')`, stuck)
		}
		e, err := o.Explain(t.Context(), waiting)
		if err != nil || len(e.Reasons) == 0 || e.Reasons[0].Code != operator.WhyQueueFull ||
			e.Reasons[0].Evidence.Running != 1 || e.Reasons[0].Evidence.Job != stuck {
			t.Errorf("the waiting job: %+v, %v; want the queue to be full of the one job", e.Reasons, err)
		}
		longest, err := o.LongestRunning(t.Context(), "default", outbox.ID{}, 0)
		if err != nil || len(longest) != 1 || longest[0].ID != stuck {
			t.Errorf("what has run longest: %v, %v; want the one job", longest, err)
		}
	}
}
