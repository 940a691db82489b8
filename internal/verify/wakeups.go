package verify

import (
	"context"
	"time"
)

// wakeUps returns family C: a notification is only a hint.
func wakeUps() []Row {
	return []Row{
		{
			Name: "C1", Timed: true, Title: "All notifications dropped",
			Fault: "every notification is dropped, and two transactions commit after the claims have gone past the position of their jobs", Tiers: both, run: noNotifications,
			Workload: "2,000 jobs (S: 20,000) at all times between the polls; 2 workers that poll every second",
			Pass:     jobsSafe + "; every job starts within the poll interval + 250 ms, plus what the machine itself delayed a commit",
		},
		{
			Name: "C2", Timed: true, Title: "Half-open listener connections",
			Fault: "8 listener connections (S: 52) become half-open: what either side sends is lost, and neither side gets an error", Tiers: both, run: halfOpen,
			Workload: "a job every 100 ms; 4 workers that poll every second and lose their listeners at about the same time",
			Pass:     jobsSafe + "; a worker detects it within 8 s, and listens again ≤ 1 s later; every job starts within the poll interval + 250 ms, plus what the machine itself delayed a commit",
		},
		{
			Name: "C3", Timed: true, Alone: true, Title: "Listener reconnects",
			Fault: "the listener's session is terminated, or Postgres is restarted, in turn (8 times, S: 100); before that, a worker without a listener, and a COMMIT that takes a second", Tiers: both, run: listenerCut,
			Workload: "a job in each gap, without a notification, and a worker that polls every five minutes while it listens; a job that waits for the first worker, and one of the slow COMMIT",
			Pass:     jobsSafe + "; the job of a gap starts ≤ 250 ms after the listener is back, which is ≤ 1 s (p99) after the server answers; the job that waits for a worker starts ≤ 1 s after the worker does, that of the slow COMMIT ≤ 5 s after it, not at the poll",
		},
		{
			Name: "C4", Title: "Deaf listeners",
			Fault: "UNLISTEN is run in the listener's own session; a pooler discards LISTEN", Tiers: both,
			run:      registeredButDeaf,
			Workload: "a job every 100 ms, without a notification; 3 workers that are made deaf (once each, S: 10 times each), 1 behind the pooler",
			Pass:     jobsSafe + "; a worker detects within 65 s that it is deaf, and shows it in /readyz and its metrics; every job starts within the poll interval of a deaf worker, 2 s, + 250 ms, plus what the machine itself delayed a commit",
		},
		{
			Name: "C5", Timed: true, Alone: true, Title: "Forged notifications",
			Fault: "a role without any grants forges 10,000 notifications per second", Tiers: both,
			run:      forgedNotifications,
			Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"},
			Workload: "about 180 jobs per second to 2 dispatchers, for 6 s (S: 35 s and at least 5,000 jobs) without and for as long with forged notifications, of which there are ≥ 5,000 (S: ≥ 10,000) per second",
			Pass:     jobsSafe + "; the forged notifications add ≤ 55 (S: 20) claim queries per second for each dispatcher; commit to start p99 ≤ 2 × that without, or 50 ms, because a dispatcher that is woken for nothing looks every 20 ms",
		},
		{
			Name: "C6", Title: "A stopped listener blocks the notification queue",
			Fault: "a dispatcher is stopped (SIGSTOP) while 50,000 notifications arrive (once, S: 10 times)",
			Tiers: both, run: wedgedListener,
			Workload: "a job every 100 ms, notified in its transaction; 2 other workers",
			Pass:     jobsSafe + "; a reaper terminates the stopped session, so that its snapshot is released ≤ 45 s later; the notification queue is < 0.01 % full again; no commit fails",
		},
		{
			Name: "C8", Title: "Cost of NOTIFY", Fault: "none: this row measures what NOTIFY costs producers",
			Tiers: []Tier{TierS}, run: costOfNotify,
			Workload: "1 to 64 clients that each commit a business row and a job, for 15 s, with notifications off, coalesced and in the transaction, in turn",
			Pass:     "with 64 clients, coalesced ≥ 95 % of the commits per second with notifications off; the other rates are only reported",
		},
	}
}

const (
	poll      = time.Second            // poll interval of the harness's workers
	deafPoll  = 2 * time.Second        // poll interval of a worker whose listener is deaf, whatever its settings
	pollSlack = 250 * time.Millisecond // for the look itself
)

// noNotifications runs row C1.
func noNotifications(ctx context.Context, r *Run) error {
	f := flow{jobs: r.Size(2_000, 20_000), producers: 2, workers: 2, concurrency: 32, producerEnv: []string{
		"VERIFY_NOTIFY=off", "VERIFY_CLIENTS=4", "VERIFY_PACE=40ms", "VERIFY_MIX=effect,nothing,once,sleep",
		"VERIFY_MS=10",
	}}
	var team *crew
	f.faults = func(ctx context.Context, c *crew) error {
		team = c
		return r.commitLate(ctx, len(c.workers)) // production goes on until this returns
	}
	f.healed = func(ctx context.Context) error { // the workers are still running, so that their metrics can be read
		heard, err := metric(ctx, "job_notification_received_total", team.workers...)
		r.Expect("notifications received although all were to be dropped", heard, "=", 0)
		return err
	}
	healed := r.Faults.Begin("notifications dropped", "")
	defer healed()
	stalled := r.stalls(ctx)
	_, err := f.run(ctx, r)
	stall := stalled()
	if err != nil {
		return err
	}
	r.atLeast(1, "late commit")
	return r.startsWithin(poll + pollSlack + stall)
}
