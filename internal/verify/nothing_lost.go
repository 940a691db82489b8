package verify

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// nothingLost returns family A: every acknowledged job is executed.
func nothingLost() []Row {
	return []Row{
		{
			Name: "A1", Title: "No fault", Fault: "none", Tiers: both, run: noFault,
			Workload: "8,000 jobs (S: 1,000,000) from 8 producers, executed by 6 workers",
			Pass:     jobsSafe + "; exactly one execution per job",
		},
		{
			Name: "A2", Title: "Workers killed, Postgres restarted", Fault: "kill -9 of a random worker every second (S: 2 s), and an immediate restart of Postgres every 5 s (S: 30 s)", Tiers: both, run: killsAndRestarts,
			Workload: "4,000 jobs (S: 1,000,000) from 4 producers that retry with idempotency keys; 3 workers",
			Pass:     jobsSafe + "; executions without an error, beyond one per job, ≤ (kills + restarts × workers) × concurrency",
		},
		{
			Name: "A3", Title: "Producers killed at COMMIT", Fault: "producers are killed with kill -9 at a COMMIT, and their connections are cut before, inside and after a COMMIT", Tiers: both, run: killsAtCommit,
			Workload: "5,000 transactions (S: 100,000), each with a business row and a job, retried with the same idempotency key until acknowledged",
			Pass:     jobsSafe + "; no business row with two jobs; every order acknowledged by the end",
		},
		{
			Name: "A3b", Title: "Producers killed at a COMMIT that claims their own job", Fault: "processes that produce and execute jobs, and claim a job in the transaction that stores it, are killed with kill -9 at such a COMMIT (18 times, S: 360); their connections are cut at the claim, after such a COMMIT, and between it and its response (6 times each, S: 120)", Tiers: both, run: killsAtClaimingCommit,
			Workload: "36 processes (S: 720), 6 at a time, each of which places orders with a business row and a job for itself until its fault; 2 workers",
			Pass:     jobsSafe + "; no lease of a process that was not killed expires; ≥ 180 jobs (S: 3,600) claimed in the transaction that stored them",
		},
		{
			Name: "A4", Title: "Database sessions terminated", Fault: "pg_terminate_backend of a random session of the processes, 20 times a second", Tiers: both, run: terminations,
			Workload: "4,000 jobs (S: 200,000) from 4 producers that retry; 3 workers",
			Pass:     jobsSafe + "; every order acknowledged by the end",
		},
		{
			Name: "A5", Timed: true, Title: "Postgres crashes", Fault: "kill -9 of the postmaster (4 times, S: 20), followed by crash recovery; before that, kill -9 right after a single enqueue and right after a single claim (once each, S: 5 times)", Tiers: both, run: postmasterKills,
			Settings: map[string]string{"wal_writer_delay": "10s"}, // what no commit waits for is lost in a crash
			Workload: "4,000 jobs (S: 200,000) from 4 producers that retry; 3 workers",
			Pass:     jobsSafe + "; at most one execution per lease (job and epoch); first completed job after the server accepts connections: median ≤ 2 s, worst ≤ 3 s",
		},
		{
			Name: "A7", Timed: true, Title: "Failover to a synchronous standby", Fault: "kill -9 of a primary whose commits wait for a standby, which is then promoted (twice, S: 20 times); every client has both servers in its DSN", Tiers: both, run: failover, direct: true,
			Workload: "4,500 jobs (S: 200,000) from 4 producers that retry; 3 workers",
			Pass:     jobsSafe + "; every order acknowledged by the end; first completed job ≤ 10 s after the promotion",
		},
		{
			Name: "A11", Title: "Savepoints rolled back", Fault: "savepoints of a Producer's transaction are rolled back, and jobs are enqueued meanwhile through each of its handles", Tiers: both, run: savepoints, direct: true,
			Workload: "600 random transactions (S: 20,000) from 4 writers: orders and jobs written through the transaction, through its savepoints and through Conn(); savepoints are nested, released or rolled back",
			Pass:     jobsSafe + "; exactly the jobs that were not rolled back are stored",
		},
		{
			Name: "A12", Title: "Connection cut at the COMMIT that completes a job", Fault: "connections of handlers are cut before, inside and after the COMMIT of the transaction that completes their job", Tiers: both, run: unanswered,
			Workload: "1,200 jobs (S: 40,000) for one worker, of the root tenant and another, with and without keys; handlers return the error of their COMMIT",
			Pass:     jobsSafe + "; the worker logs every job as completed, and none as a lost lease",
		},
		{
			Name: "A13", Timed: true, Title: "Patroni: switchover and failover", Fault: "a Patroni cluster with synchronous_mode: a planned switchover, then kill -9 of the leader's Patroni and Postgres (once each, S: 10 times each); the clients have both members in their DSN or connect through HAProxy, as the seed decides", Tiers: both, run: patroniCluster, direct: true, elsewhere: true,
			Workload: "800 jobs (S: 20,000) from 2 producers that retry, 2 workers; 2 publishers of events and a relay",
			Pass:     jobsSafe + "; every order acknowledged by the end; first completed job ≤ 10 s after a leader accepts writes; S: a new leader ≤ 30 s after a kill (ttl is 20 s); no event missing, unexpected or out of order",
		},
	}
}

func noFault(ctx context.Context, r *Run) error {
	r.Lease = 15 * time.Second // the default: no machine stalls for so long
	f := flow{jobs: r.Size(8_000, 1_000_000), producers: 8, workers: 6, concurrency: 16, producerEnv: []string{
		"VERIFY_CLIENTS=2", "VERIFY_MIX=effect,once,nothing,sleep", "VERIFY_MS=10",
	}}
	wasted, err := f.run(ctx, r)
	if err == nil {
		r.Expect("executions beyond one per job", float64(wasted), "=", 0)
		r.Expect("jobs completed", float64(r.record.Counts["completed"]), "=", float64(f.jobs))
	}
	return err
}

// insisting returns the settings of producers that retry, with idempotency keys, what was not acknowledged. The pace
// makes the run last long enough.
func insisting(pace string) []string {
	return []string{"VERIFY_INSIST=on", "VERIFY_CLIENTS=4", "VERIFY_MIX=effect,once,effect,sleep", "VERIFY_MS=30", "VERIFY_PACE=" + pace}
}

func killsAndRestarts(ctx context.Context, r *Run) error {
	const workers, concurrency = 3, 16
	kill, restart := 2*time.Second, 30*time.Second
	if r.Tier == TierP {
		kill, restart = time.Second, 5*time.Second
	}
	f := flow{jobs: r.Size(4_000, 1_000_000), producers: 4, workers: workers, concurrency: concurrency, producerEnv: insisting(r.pace("20ms", "0s"))}
	f.least = map[string]int{"kill -9 worker": 3, "restart Postgres -m immediate": 1}
	f.faults = func(ctx context.Context, c *crew) error {
		return r.Inject(ctx, fault.Schedule(r.Seed, aLongTime,
			fault.Beat{Kind: "kill", Every: kill, Targets: workers},
			fault.Beat{Kind: "restart", Every: restart},
		), acts{
			"kill":    func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			"restart": r.restartPostgres,
		})
	}
	wasted, err := f.run(ctx, r)
	if err != nil {
		return err
	}
	kills, restarts := r.Faults.Count("kill -9 worker"), r.Faults.Count("restart Postgres -m immediate")
	r.Expect("executions without an error, beyond one per job", float64(wasted), "<=", float64((kills+restarts*workers)*concurrency))
	r.allAcked(f.jobs)
	return nil
}

// pace returns the duration for the run's tier.
func (r *Run) pace(p, s string) string {
	if r.Tier == TierS {
		return s
	}
	return p
}

// allAcked checks that producers that retry got every order acknowledged, and that every job completed.
func (r *Run) allAcked(jobs int) {
	r.Expect("orders acknowledged by the end", float64(r.record.Counts["acknowledged"]), "=", float64(jobs))
	r.Expect("jobs completed", float64(r.record.Counts["completed"]), "=", float64(jobs))
}

func terminations(ctx context.Context, r *Run) error {
	f := flow{jobs: r.Size(4_000, 200_000), producers: 4, workers: 3, concurrency: 16, producerEnv: insisting(r.pace("10ms", "2ms"))}
	f.least = map[string]int{"pg_terminate_backend": r.Size(50, 500)}
	f.faults = func(ctx context.Context, _ *crew) error {
		return r.beat(acts{"terminate": r.terminateBackend}, fault.Beat{Kind: "terminate", Every: 50 * time.Millisecond})(ctx)
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.allAcked(f.jobs)
	return nil
}
