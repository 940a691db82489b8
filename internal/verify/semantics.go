package verify

// semantics is family K: what jobs were promised beyond being carried out.
func semantics() []Row {
	const accounts = "lost 0, unexpected 0, orphans 0/0, illegal moves 0, L1 0, L2 unexplained 0, effects missing 0 and twice 0, every job closed"
	return []Row{
		{
			Name: "K1", Fault: "kill -9 of a random worker every second and an immediate restart of Postgres every 3 s (S: 30 s)", Tiers: both, run: limitedKeys,
			Workload: "P 500, S 20,000 jobs of 30 keys, half of which run one and half three at a time, from 4 producers that repeat with idempotency keys, 3 workers",
			Pass:     accounts + ", more running jobs of a key than its limit never, by the recorded moves and by the ledgers",
		},
		{
			Name: "K2", Fault: "kill -9 of a random worker every second and an immediate restart of Postgres every 3 s (S: 30 s); one attempt in eight fails", Tiers: both, run: orderedKeys,
			Workload: "P 500, S 10,000 ordered jobs of 30 keys, numbered in the order of their commits, from 4 producers that repeat with idempotency keys, 3 workers",
			Pass: accounts + ", two jobs of a key at once never, a job claimed before the earlier ones of its key had closed, however often they were tried, never, " +
				"starts of each key in the order of the commits; heads that failed held up their lines",
		},
		{
			Name: "K3", Fault: "kill -9 of a random scheduler every 0.5 s and an immediate restart of Postgres every 3 s (S: 20 s)", Tiers: both, run: ticks,
			Workload: "P 9, S 600 seconds of a schedule that ticks every second and one that ticks every minute and missed a quarter of an hour, both with policy all, fired by 3 processes",
			Pass:     "ticks fired twice 0, missing 0, jobs of no tick 0, every job succeeded, illegal moves 0, L1 0, L2 unexplained 0",
		},
		{
			Name: "K4", Timed: true, Alone: true, Fault: "kill -9 of a random worker every second and an immediate restart of Postgres every 3 s (S: 30 s)", Tiers: both, run: callsOff,
			Workload: "P 450, S 40,000 jobs of up to 0.8 s, of which a third have deadlines 0.2 to 3.2 s ahead and a third are cancelled within 1.5 s, waiting or running; 3 workers",
			Pass: accounts + " of those that were left alone; started at or after the deadline 0, " +
				"run or claimed after they were cancelled or closed 0, expired or cancelled within 1 s (if its own worker was killed, and a lease's time; after a restart, and 3 s)",
		},
		{
			Name: "K5", Fault: "kill -9 of a random worker every 0.7 s", Tiers: both, run: limitedQueue,
			Workload: "P 350, S 30,000 jobs of up to 60 ms in a queue of which 6 may run at once and 30 start in 400 ms, from 2 producers that repeat with idempotency keys, 3 workers",
			Pass:     accounts + ", more than 6 running jobs never, by the recorded moves, more than 30 starts in any span of 400 ms never, by the starts that claims say; both limits were used",
		},
		{
			Name: "K6", Timed: true, Fault: "first none, without a reaper; then kill -9 of a random worker every 0.5 s, and of all (P once, S 15 times) when they have settled jobs and not yet promoted the next ones", Tiers: both, run: promotions,
			Workload: "P 600, S 60,000 jobs of up to 20 ms, 4 of each key, of which one in 25 fails at first; then P 250, S 30,000 and more until there were faults enough, P 16, S 64 of each key; half of the keys run one and half three at a time; 3 producers that repeat with idempotency keys, 3 workers",
			Pass: accounts + ", without a sweep no key is left with jobs, and none has a free slot and a blocked job for more than 1 s (and what the machine itself made a commit, and the first promotion of a new session, wait); " +
				"beside kills none for more than a sweep takes to come, 2.75 s, nor is a key without a claim that has jobs waiting for more than lease + reap + sweep + poll, 8.25 s (each and 1 s, and what the machine made a sweep wait)",
		},
	}
}
