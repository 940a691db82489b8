package verify

import (
	"context"
	"time"
)

// wakeUps is family C: a notification is a hint.
func wakeUps() []Row {
	const accounts = "lost 0, unexpected 0, effects missing 0 and twice 0"
	return []Row{
		{
			Name: "C1", Timed: true, Fault: "every notification dropped, and two transactions that commit when the claims have gone past their jobs", Tiers: both, run: noNotifications,
			Workload: "P 2,000, S 20,000 jobs at all times between the polls, 2 workers that poll every second",
			Pass:     accounts + ", every job starts within the poll interval + 250 ms, and what the machine itself made a commit wait",
		},
		{
			Name: "C2", Timed: true, Fault: "half-open connections of listeners (P: 8, S: 52): what either side sends vanishes, and nobody is told", Tiers: both, run: halfOpen,
			Workload: "a job every 100 ms, 4 workers that poll every second and lose their listeners at about the same time",
			Pass:     accounts + ", found out ≤ 8 s, listening again ≤ 1 s later, every job starts within the poll interval + 250 ms, and what the machine itself made a commit wait",
		},
		{
			Name: "C3", Timed: true, Alone: true, Fault: "the listener's session terminated, or Postgres restarted, in turns (P: 8, S: 100 times); before, a worker without a listener, and a COMMIT that takes a second", Tiers: both, run: listenerCut,
			Workload: "a job in each gap, told to nobody, and a worker that polls every five minutes while it listens; a job that waits for the first worker, and one of the slow COMMIT",
			Pass: accounts + ", the job starts ≤ 250 ms after the listener is back, which is ≤ 1 s (p99) after the server answers; what waits for a worker starts ≤ 1 s after it does, " +
				"that of the slow COMMIT ≤ 5 s after it, not at the poll",
		},
		{
			Name: "C4", Fault: "UNLISTEN behind the listener's back; a pooler that swallows LISTEN", Tiers: both, run: registeredButDeaf,
			Workload: "a job every 100 ms, told to nobody; 3 workers to be deafened (P once, S 10 times each), 1 behind the pooler",
			Pass:     accounts + ", deafness found out ≤ 65 s, seen in /readyz and the metrics, every job starts within the deaf poll of 2 s + 250 ms, and what the machine itself made a commit wait",
		},
		{
			Name: "C5", Timed: true, Alone: true, Fault: "10,000 notifications a second forged by a role that was granted nothing", Tiers: both, run: forgedNotifications,
			Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"},
			Workload: "about 180 jobs a second to 2 dispatchers, P 6 s, S 35 s and at least 5,000 jobs without and as many with forged notifications, of which there are P ≥ 5,000, S ≥ 10,000 a second",
			Pass:     accounts + ", claiming queries beyond those without ≤ P 55, S 20 a second and dispatcher, pickup p99 ≤ 2 × that without, or 50 ms: who is woken for nothing looks every 20 ms",
		},
		{
			Name: "C6", Fault: "a dispatcher stopped (SIGSTOP) while 50,000 notifications arrive (P once, S 10 times)", Tiers: both, run: wedgedListener,
			Workload: "a job every 100 ms, notified in its transaction; 2 other workers",
			Pass:     accounts + ", a reaper frees the snapshot of the wedged session ≤ 45 s, the notification queue is < 0.01 % full again, commits that failed 0",
		},
		{
			Name: "C8", Fault: "none: what NOTIFY costs producers", Tiers: []Tier{TierS}, run: costOfNotify,
			Workload: "1 to 64 clients that each commit a business row and a job, 15 s, with notifications off, coalesced and in the transaction, in turns",
			Pass:     "coalesced ≥ 95 % of off at 64 clients; the others are figures",
		},
	}
}

const (
	poll      = time.Second            // of the harness's workers
	deafPoll  = 2 * time.Second        // of a worker that hears nothing, whatever its settings
	pollSlack = 250 * time.Millisecond // for the look itself
)

// noNotifications is row C1.
func noNotifications(ctx context.Context, r *Run) error {
	f := flow{jobs: r.Size(2_000, 20_000), producers: 2, workers: 2, concurrency: 32, producerEnv: []string{
		"VERIFY_NOTIFY=off", "VERIFY_CLIENTS=4", "VERIFY_PACE=40ms", "VERIFY_MIX=effect,nothing,once,sleep", "VERIFY_MS=10",
	}}
	var team *crew
	f.faults = func(ctx context.Context, c *crew) error {
		team = c
		return r.commitLate(ctx, len(c.workers)) // production goes on until it returns
	}
	f.healed = func(ctx context.Context) error { // the workers are still there to ask
		heard, err := metric(ctx, "job_notification_received_total", team.workers...)
		r.Expect("notifications that arrived all the same", heard, "=", 0)
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
