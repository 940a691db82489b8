package verify

// semantics returns family K: what jobs were promised beyond being executed.
func semantics() []Row {
	return []Row{
		{
			Name: "K1", Title: "Concurrency limits of keys",
			Fault: "kill -9 of a random worker every second, and an immediate restart of Postgres every 3 s (S: 30 s)",
			Tiers: both, run: limitedKeys,
			Workload: "500 jobs (S: 20,000) of 30 keys, half of which run one job at a time and half three, from 4 producers that retry with idempotency keys; 3 workers",
			Pass:     jobsSafe + "; never more running jobs of a key than its limit, by the recorded history and by the ledgers",
		},
		{
			Name: "K2", Title: "Order within a key",
			Fault: "kill -9 of a random worker every second, and an immediate restart of Postgres every 3 s (S: 30 s); one attempt in eight fails", Tiers: both, run: orderedKeys,
			Workload: "500 ordered jobs (S: 10,000) of 30 keys, numbered in the order of their commits, from 4 producers that retry with idempotency keys; 3 workers",
			Pass:     jobsSafe + "; never two jobs of a key at once; no job is claimed before the earlier ones of its key are closed, however often they are retried; the jobs of a key start in the order of the commits; failed jobs hold back the later ones of their key",
		},
		{
			Name: "K3", Title: "Schedules",
			Fault: "kill -9 of a random scheduler every 0.5 s, and an immediate restart of Postgres every 3 s (S: 20 s)", Tiers: both, run: ticks,
			Workload: "9 s (S: 600 s) of a schedule that fires every second and one that fires every minute and missed a quarter of an hour, both with policy all, fired by 3 processes",
			Pass:     "no tick fired twice, none missed, no job without a tick; every job succeeds; no illegal status changes; L1 and L2 hold",
		},
		{
			Name: "K4", Timed: true, Alone: true, Title: "Deadlines and cancellations",
			Fault: "kill -9 of a random worker every second, and an immediate restart of Postgres every 3 s (S: 30 s)",
			Tiers: both, run: callsOff,
			Workload: "450 jobs (S: 40,000) of up to 0.8 s: a third has deadlines 0.2 to 3.2 s ahead, a third is cancelled within 1.5 s, waiting or running; 3 workers",
			Pass:     jobsSafe + ", for the third that is left alone; no job starts at or after its deadline; none is executed or claimed after it was cancelled or closed; each is expired or cancelled within 1 s (plus a lease if its own worker was killed, plus 3 s after a restart)",
		},
		{
			Name: "K5", Title: "Concurrency limit and rate of a queue", Fault: "kill -9 of a random worker every 0.7 s",
			Tiers: both, run: limitedQueue,
			Workload: "350 jobs (S: 30,000) of up to 60 ms in a queue with at most 6 running jobs and 30 starts in 400 ms, from 2 producers that retry with idempotency keys; 3 workers",
			Pass:     jobsSafe + "; never more than 6 running jobs, by the recorded history; never more than 30 starts in any 400 ms, by the starts that claims record; both limits were reached",
		},
		{
			Name: "K6", Timed: true, Title: "Blocked jobs are promoted",
			Fault: "first none, without a reaper; then kill -9 of a random worker every 0.5 s, and of all workers (once, S: 15 times) after they have settled jobs and before they have promoted the next ones", Tiers: both, run: promotions,
			Workload: "600 jobs (S: 60,000) of up to 20 ms, 4 of each key, one in 25 of which fails at first; then 250 jobs (S: 30,000), and more until there were enough faults, 16 (S: 64) of each key; half of the keys run one job at a time and half three; 3 producers that retry with idempotency keys, 3 workers",
			Pass:     jobsSafe + "; without a sweep, no key is left with jobs, and none has a free slot and a blocked job for more than 1 s (plus what the machine itself delayed a commit and the first promotion of a new session); during the kills, none has for more than a sweep takes to begin, 2.75 s, and no key with waiting jobs is without a claim for more than lease + reap + sweep + poll, 8.25 s (each plus 1 s and what the machine delayed a sweep)",
		},
	}
}
