package verify

// leases returns family B: a job has one live lease, and a worker that lost it writes nothing.
func leases() []Row {
	const fenced = "every late write is refused; stored rows, leases included, are unchanged; L1, L2 and L3 hold"
	return []Row{
		{
			Name: "B1", Title: "A stopped worker resumes after it lost its leases", Fault: "SIGSTOP of a worker until its leases have expired; another worker runs its jobs; SIGCONT", Tiers: both, run: zombies,
			Workload: "150 rounds (S: 1,050) of: succeed, write a result, fail, snooze, extend, give back, a guarded write, Complete in a transaction",
			Pass:     fenced + "; the context of a resumed handler ends with ErrLeaseLost within a heartbeat, not counting the time that the machine took to wake the handler",
		},
		{
			Name: "B2", Title: "As B1, under the same worker name", Fault: "as B1, but the replacement holds its leases under the stopped worker's own name; half of the jobs were dead and retried by an operator, so that both attempts have number 1", Tiers: both, run: namesakes,
			Workload: "as B1",
			Pass:     fenced,
		},
		{
			Name: "B3", Timed: true, Title: "Network partitions between workers and Postgres", Fault: "the network between a worker and Postgres holds back all traffic for one and a half leases: both directions, requests only, responses only; once (S: 30 times) for each worker. A TCP proxy holds the traffic back and delivers it afterwards; no packets are dropped", Tiers: both, run: partitions,
			Workload: "1,800 jobs (S: 50,000), each up to two leases long, on 3 workers, each behind its own proxy; the lease is 3 s at P",
			Pass:     "L1, L2 and L3 hold; no lost jobs; no illegal status changes; of the handlers that a lost lease stopped, or that outlived it, ≥ 99.9 % ended before the lease did, by the database's clock",
		},
		{
			Name: "B4", Timed: true, Alone: true, Title: "Wrong clocks on workers and producers", Fault: "the wall clocks of one worker and the producer are an hour ahead, another worker's is an hour behind, and a third worker's jumps between both twice a second (by code put into the vDSO of unmodified processes); the worker whose clock is ahead is killed", Tiers: both, run: clocks,
			Workload: "3,000 jobs (S: 20,000) from the producer, some longer than the time between extensions, and 600 jobs (S: 2,000) due 1 to 4 s later",
			Pass:     "L1 and L3 hold; no lost jobs; no job starts before it is due; no lease expires but the killed worker's; claims beyond one per job ≤ 1 %; due jobs start within 2 s (p99), the killed worker's within lease + 3 s",
		},
		{
			Name: "B4b", Timed: true, Title: "Postgres's clock steps", Fault: "Postgres's clock steps 10 min ahead, back, and ahead again (libfaketime; its processes see a step within a second of each other); a worker is killed while leases end 10 min late; S: 16 steps, and with every third one the server is killed and its standby, which has the same clock, is promoted", Tiers: both, run: serverClock,
			serverEnv: fakeTime,
			Workload:  "4,000 jobs (S: 20,000) from 2 producers that retry, 3 workers; S: every commit waits for the standby",
			Pass:      "L1 holds by the database's clock; L3 holds; no lost jobs; executions overlap (L2) only where the session that took the lease had a later clock than the session that granted it; ≥ 1 lease expired because of a step",
		},
		{
			Name: "B5", Title: "64 concurrent claimers, adverse query plans", Fault: "64 claimers at once, planner statistics that say one row, and 45 combinations of planner settings that each leave one join method and one scan method; before that, a claim under each combination while another session has locked the first job", Tiers: both, run: claimers, direct: true,
			Workload: "20,000 leases (S: 1,000,000), claimed 1 to 20 at a time, given back and claimed again",
			Pass:     "no claim waits for a locked job; no claim returns more jobs than asked for; no lease (job and epoch) is granted twice; every claim raises the epoch; L1 holds; every claim that the database recorded was returned to one claimer",
		},
		{
			Name: "B9", Timed: true, Alone: true, Title: "A worker dies with 10,000 jobs", Fault: "kill -9 of a worker that runs 10,000 jobs, with 100,000 live leases of other workers ahead of them in the table", Tiers: both, run: deadWorkers,
			Workload: "1 death (S: 10); leases of 5 s (S: 4 s)",
			Pass:     "all 10,000 jobs are run again, p99 within lease + 2.5 s (reap) + 1 s (poll), which is 8.5 s (S: 7.5 s); the reaper expires ≥ 5,000 leases/s; no live lease is touched",
		},
		{
			Name: "B10", Title: "Everything that locks jobs, at once", Fault: "batched settlements, Complete, claims, lease extensions, reapers, trimming, and four operators that retry and dismiss in random order, all on the same 2,000 jobs, whose leases are ended early", Tiers: both, run: deadlocks,
			// A deadlock is found at once, so that another can follow.
			Settings: map[string]string{"deadlock_timeout": "20ms"},
			Workload: "13 s (S: 5 min), and longer until each of them has acted often enough",
			Pass:     "no deadlocks; no operator, producer or worker gets SQLSTATE 40P01 or 40001; no illegal status changes; L1 holds",
		},
		{
			Name: "B11", Title: "Handlers whose transaction outlasts the lease", Fault: "handlers whose transaction locks their job's row for longer than the lease, which is the default of 15 s: 16 to 20 s (S: 16 to 45 s)", Tiers: both, run: heldRows,
			Workload: "40 jobs for one process and 40 for four processes, of the root tenant and another, with and without keys, with one attempt each; after the COMMIT each handler runs for another second",
			Pass:     "every job succeeds on its first attempt, with its result stored; no lost jobs; no illegal status changes; L1 and L2 hold",
		},
	}
}
