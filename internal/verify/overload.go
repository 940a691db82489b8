package verify

// overload is family D: what is slow, full or about to end costs no job.
func overload() []Row {
	const accounts = "lost 0, unexpected 0, orphans 0/0, illegal moves 0, L1 0, L2 unexplained 0, effects missing 0 and twice 0"
	return []Row{
		{
			Name: "D1", Timed: true, Alone: true, Fault: "an idle transaction holds xmin for P 6 s over 300,000 dead rows, S 10 min", Tiers: both, run: heldSnapshot,
			Workload: "about 500 jobs a second from one producer to 2 workers, before and under the fault",
			Pass:     accounts + ", claim p99 ≤ 5 × that before, throughput ≥ 80 %, claims as fast as before ≤ 60 s after the release",
		},
		{
			Name: "D3", Timed: true, Alone: true, Fault: "handlers keep every connection of their pool for P 9 s, S 60 s, three times the lease and more, and others wait for one", Tiers: both, run: poolExhausted,
			Workload: "4 jobs that keep a connection, 60 that need one; a second worker that would take over",
			Pass:     accounts + ", leases lost 0, extensions late p99 ≤ 200 ms, executions = jobs",
		},
		{
			Name: "D4", Timed: true, Fault: "500 ms a round trip to the database, and one answer in ten held back for P 7 s, S 30 s", Tiers: both, run: slowDatabase,
			Workload: "about 100 jobs a second to 2 workers, before, under and after P 10 s, S 150 s of it; S at least 20,000 jobs",
			Pass:     accounts + ", calls longer than their deadline and a second 0, without one 0, goroutines left 0, full speed ≤ 5 s after",
		},
		{
			Name: "D5", Timed: true, Alone: true, Fault: "a backlog of P 200,000, S 10,000,000 due jobs", Tiers: both, run: backlog,
			Workload: "4 workers that claim a few jobs at a time, with 10,000 due jobs and with the backlog",
			Pass:     "claim p99 ≤ 2 × that with 10,000, no job lost, no second attempt",
		},
		{
			Name: "D7", Timed: true, Fault: "workers stopped under load: SIGTERM, SIGTERM twice, SIGTERM and SIGKILL at the deadline (P: 3, S: 200 times each)", Tiers: both, run: stopsUnderLoad,
			Workload: "P 1,500, S 60,000 jobs of up to 1.5 s, one in 20 of 6 s, from 2 producers that repeat, 3 workers",
			Pass:     accounts + ", exit status and time as promised, leases after a stop in good order 0, no goroutine left, lapsed leases taken away within 3 s",
		},
		{
			Name: "D10", Fault: "PgBouncer in transaction mode before Postgres; after a calm third, kill -9 of a worker every second and an immediate restart of Postgres every 4 s; S: after that, whatever the other rows do", Tiers: both, run: behindAPooler,
			Workload: "P 3,000, S 100,000 jobs from 4 producers that repeat, 3 workers; LISTEN goes to Postgres itself; S: every other row of tier P on PostgreSQL 15 and 18, without the pooler and, of those that have processes and one server, behind it",
			Pass:     accounts + ", unacknowledged in the end 0, second attempts while it is calm 0; S: rows of tier P that fail 0",
		},
		{
			Name: "D11", Timed: true, Alone: true, Fault: "an idle transaction holds xmin over 200,000 dead rows of one tenant, which is busy", Tiers: both, run: newTenants,
			Workload: "P 20,000, S 400,000 jobs of the busy tenant to 2 workers; beside them and for 4 s after, lone jobs of new tenants, without and with a key, and of quiet ones",
			Pass:     accounts + ", lone jobs of each sort: from commit to start median ≤ 20 ms, most ≤ 1 s",
		},
		{
			Name: "D12", Timed: true, Alone: true, Fault: "the host of a webhook is away for P 20 s, S 5 min", Tiers: both, run: hostAway,
			Workload: "20,000 due jobs for it, root's and a tenant's, with keys and without; one worker",
			Pass:     "while it is away claims ≤ 200, lines of the log ≤ 100, WAL ≤ 2 MiB, attempts spent 0; all delivered ≤ 10 s after its return, each once and by its first attempt",
		},
	}
}
