package verify

// leases is family B: a job has one live lease, and a worker that lost it writes
// nothing.
func leases() []Row {
	const fenced = "all refused, stored rows unchanged (leases too), effects missing 0 and twice 0, L1 0, L2 unexplained 0"
	return []Row{
		{
			Name: "B1", Fault: "SIGSTOP of a worker beyond its leases; another runs its jobs; SIGCONT", Tiers: both, run: zombies,
			Workload: "P 150, S 1,050 rounds of: succeed, write a result, fail, snooze, extend, give back, a guarded write, Complete in a transaction",
			Pass:     fenced + ", a resumed handler's context ends with ErrLeaseLost within a heartbeat, without the time that the machine took to come to its handlers",
		},
		{
			Name: "B2", Fault: "the same, and the replacement holds its leases under the zombie's very name; half of the jobs were dead and retried by an operator, so that both attempts have number 1", Tiers: both, run: namesakes,
			Workload: "as B1",
			Pass:     fenced,
		},
		{
			Name: "B3", Timed: true, Fault: "the network between a worker and Postgres holds everything back for one and a half leases: both directions, requests only, answers only (by a TCP proxy that delivers when it is mended, in place of packets dropped in a network namespace), P once, S 30 times for each worker", Tiers: both, run: partitions,
			Workload: "P 1,800, S 50,000 jobs of up to two leases' length on 3 workers, each behind a network of its own; the lease is 3 s at P",
			Pass:     "L1 0, L2 unexplained 0, lost 0, effects missing 0 and twice 0, illegal moves 0; of the handlers that were stopped or went on ≥ 99.9 % ended before the database's time of their lease",
		},
		{
			Name: "B4", Timed: true, Alone: true, Fault: "wall clocks of two workers and a producer an hour ahead, an hour behind, and one worker's jumping between both twice a second (by code put into the vDSO of unmodified processes); the worker that is ahead is killed", Tiers: both, run: clocks,
			Workload: "P 3,000, S 20,000 jobs from the producer, some longer than an extension takes, and P 600, S 2,000 that are due 1 to 4 s later",
			Pass:     "L1 0, lost 0, effects missing 0 and twice 0, jobs started early 0, leases that lapsed but for the killed worker's 0, claims in vain ≤ 1 %, jobs that are due start within 2 s (p99), the killed worker's within lease + 3 s",
		},
		{
			Name: "B4b", Timed: true, Fault: "Postgres's clock steps 10 min ahead, back, and ahead again (libfaketime; its processes learn of a step within a second of each other); a worker is killed while leases end 10 min late; S: 16 steps, and with every third the server is killed and its standby, by the same clock, promoted", Tiers: both, run: serverClock,
			serverEnv: fakeTime,
			Workload:  "P 4,000, S 20,000 jobs from 2 producers that repeat, 3 workers; S: every commit waits for the standby",
			Pass:      "L1 0 by the database's clock, lost 0, effects missing 0 and twice 0, L2 explained by a clock of the lease's taker that was ahead of its giver's; leases lapsed by a step ≥ 1",
		},
		{
			Name: "B5", Fault: "64 claimers at once, statistics that say one row, planner settings that leave one way to join and one to scan, 45 combinations; before, each of these while somebody has locked the first job", Tiers: both, run: claimers, direct: true,
			Workload: "P 20,000, S 1,000,000 claims of 1 to 20 jobs each asked for, given back and claimed again",
			Pass:     "claims that waited for a locked job 0, claims of more than was asked for 0, (id, epoch) given out twice 0, epochs that did not rise 0, L1 0, every claim that the database recorded was returned to one claimer",
		},
		{
			Name: "B9", Timed: true, Alone: true, Fault: "kill -9 of a worker that runs 10,000 jobs, with 100,000 live leases of others before them in the table", Tiers: both, run: deadWorkers,
			Workload: "P 1, S 10 deaths; leases of P 5 s, S 4 s",
			Pass:     "all 10,000 run again, p99 within lease + 2.5 s (reap) + 1 s (poll), P 8.5 s, S 7.5 s; the reaper expires ≥ 5,000 rows/s; no live lease is touched",
		},
		{
			Name: "B10", Fault: "batched settlements, Complete, claims, extensions, reapers, trimming and four operators who retry and dismiss in orders of their own, all on the same 2,000 jobs, whose leases lapse early", Tiers: both, run: deadlocks,
			// A deadlock is found at once, and another can follow.
			Settings: map[string]string{"deadlock_timeout": "20ms"},
			Workload: "P 13 s, S 5 min, and on until everybody has acted often enough",
			Pass:     "deadlocks 0, 40P01 and 40001 that an operator, a producer or a worker saw 0, illegal moves 0, L1 0",
		},
		{
			Name: "B11", Fault: "handlers whose transaction holds their job's row for longer than the lease, which is the default one: P 16 to 20 s, S 16 to 45 s", Tiers: both, run: heldRows,
			Workload: "40 jobs to one process, and beside them 40 to four; root's and a tenant's, with keys and without, of one attempt each; after the COMMIT each works on for a second",
			Pass:     "all succeed in their first attempt, with its result, illegal moves 0, L1 0, L2 0, lost 0",
		},
	}
}
