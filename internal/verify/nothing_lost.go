package verify

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// nothingLost is family A: whatever is acknowledged is carried out.
func nothingLost() []Row {
	const accounts = "lost 0, unexpected 0, orphans 0/0, illegal moves 0, L1 0, L2 unexplained 0, effects missing 0 and twice 0"
	return []Row{
		{
			Name: "A1", Fault: "none", Tiers: both, run: noFault,
			Workload: "P 8,000, S 1,000,000 jobs from 8 producers to 6 workers",
			Pass:     accounts + ", executions = jobs",
		},
		{
			Name: "A2", Fault: "kill -9 of a random worker every 2 s (P: 1 s) and an immediate restart of Postgres every 30 s (P: 5 s)", Tiers: both, run: killsAndRestarts,
			Workload: "P 4,000, S 1,000,000 jobs from 4 producers that repeat with idempotency keys, 3 workers",
			Pass:     accounts + ", every job closed, executions without error beyond one a job ≤ (kills + restarts × workers) × concurrency",
		},
		{
			Name: "A3", Fault: "producers killed with -9 at a COMMIT, and connections cut before, inside and after a COMMIT", Tiers: both, run: killsAtCommit,
			Workload: "P 5,000, S 100,000 transactions with a business row and a job, repeated with the same key until acknowledged",
			Pass:     accounts + ", business rows with two jobs 0, unacknowledged in the end 0",
		},
		{
			Name: "A3b", Fault: "producers that dispatch too, killed with -9 at a COMMIT that claims its job (P 18, S 360), and connections cut at the claim, after such a COMMIT, and between it and its answer (P 6, S 120 each)", Tiers: both, run: killsAtClaimingCommit,
			Workload: "P 36, S 720 processes one after the other, 6 at a time, that place orders with a business row and a job for themselves until then; 2 workers",
			Pass:     accounts + ", leases that lapsed of processes that were not killed 0, claims by the transaction that stores the job ≥ P 180, S 3,600",
		},
		{
			Name: "A4", Fault: "pg_terminate_backend of a random session of ours, 20 a second", Tiers: both, run: terminations,
			Workload: "P 4,000, S 200,000 jobs from 4 producers that repeat, 3 workers",
			Pass:     accounts + ", unacknowledged in the end 0",
		},
		{
			Name: "A5", Timed: true, Fault: "kill -9 of the postmaster (P: 4, S: 20 times), crash recovery; before, right after a lone enqueue and a lone claim (P: 1, S: 5 times each)", Tiers: both, run: postmasterKills,
			Settings: map[string]string{"wal_writer_delay": "10s"}, // what no commit waits for is lost
			Workload: "P 4,000, S 200,000 jobs from 4 producers that repeat, 3 workers",
			Pass:     accounts + ", executions under one (id, epoch) ≤ 1, first completion after the server accepts: median ≤ 2 s, p99 ≤ 3 s",
		},
		{
			Name: "A7", Timed: true, Fault: "kill -9 of a server whose commits wait for a standby, which is promoted (P: 2, S: 20 times); both are in everybody's DSN", Tiers: both, run: failover, direct: true,
			Workload: "P 4,500, S 200,000 jobs from 4 producers that repeat, 3 workers",
			Pass:     accounts + ", unacknowledged in the end 0, first completion after the promotion ≤ 10 s",
		},
		{
			Name: "A11", Fault: "savepoints of a Producer's transaction rolled back, and jobs enqueued through every handle of it meanwhile", Tiers: both, run: savepoints, direct: true,
			Workload: "P 600, S 20,000 random transactions from 4 writers: orders and jobs by the transaction, by its savepoints and by Conn(), savepoints in each other, released or rolled back",
			Pass:     accounts + ", jobs as many as were not rolled back",
		},
		{
			Name: "A12", Fault: "connections of handlers cut before, inside and after the COMMIT of the transaction that completes their job", Tiers: both, run: unanswered,
			Workload: "P 1,200, S 40,000 jobs to one worker, root's and a tenant's, with keys and without; handlers return the error of their COMMIT",
			Pass:     accounts + ", jobs told as completed = jobs, as a lost lease 0",
		},
		{
			Name: "A13", Timed: true, Fault: "a cluster of Patroni with synchronous_mode: a planned switchover, then kill -9 of the leader's Patroni and Postgres (P: once, S: 10 times each); the clients have both members in their DSN or go by way of HAProxy, as the seed decides", Tiers: both, run: patroniCluster, direct: true, elsewhere: true,
			Workload: "P 800, S 20,000 jobs from 2 producers that repeat, 2 workers; 2 publishers of events and a relay",
			Pass: accounts + ", unacknowledged in the end 0, first completion after a leader takes writes ≤ 10 s, S: another leader after a kill ≤ 30 s (ttl is 20 s); " +
				"events missing, unexpected or out of order 0",
		},
	}
}

func noFault(ctx context.Context, r *Run) error {
	r.Lease = 15 * time.Second // the default: no machine stands still for so long
	f := flow{jobs: r.Size(8_000, 1_000_000), producers: 8, workers: 6, concurrency: 16, producerEnv: []string{
		"VERIFY_CLIENTS=2", "VERIFY_MIX=effect,once,nothing,sleep", "VERIFY_MS=10",
	}}
	wasted, err := f.run(ctx, r)
	if err == nil {
		r.Expect("executions beyond one a job", float64(wasted), "=", 0)
		r.Expect("jobs delivered", float64(r.record.Counts["delivered"]), "=", float64(f.jobs))
	}
	return err
}

// insisting producers repeat with idempotency keys what was not acknowledged, at a
// pace that makes the run last.
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
	r.Expect("executions without error beyond one a job", float64(wasted), "<=", float64((kills+restarts*workers)*concurrency))
	r.allAcked(f.jobs)
	return nil
}

// pace is a duration that depends on the tier.
func (r *Run) pace(p, s string) string {
	if r.Tier == TierS {
		return s
	}
	return p
}

// allAcked expects that insisting producers came through.
func (r *Run) allAcked(jobs int) {
	r.Expect("orders acknowledged in the end", float64(r.record.Counts["acknowledged"]), "=", float64(jobs))
	r.Expect("jobs delivered", float64(r.record.Counts["delivered"]), "=", float64(jobs))
}

func terminations(ctx context.Context, r *Run) error {
	f := flow{jobs: r.Size(4_000, 200_000), producers: 4, workers: 3, concurrency: 16, producerEnv: insisting(r.pace("10ms", "2ms"))}
	f.least = map[string]int{"terminate backend": r.Size(50, 500)}
	f.faults = func(ctx context.Context, _ *crew) error {
		return r.beat(acts{"terminate": r.terminateBackend}, fault.Beat{Kind: "terminate", Every: 50 * time.Millisecond})(ctx)
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.allAcked(f.jobs)
	return nil
}
