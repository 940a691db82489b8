package verify

// leases is family B: a job has one live lease, and whoever lost it writes nothing.
func leases() []Row {
	const fenced = "all refused, stored rows unchanged (leases too), effects missing 0 and twice 0, L1 0, L2 unexplained 0"
	return []Row{
		{
			Name: "B1", Fault: "SIGSTOP of a worker beyond its leases; another runs its jobs; SIGCONT", Tiers: both, run: zombies,
			Workload: "P 150, S 1,050 rounds of: succeed, write a result, fail, snooze, extend, give back, a guarded write, Complete in a transaction",
			Pass:     fenced + ", a resumed handler's context ends with ErrLeaseLost within a heartbeat",
		},
		{
			Name: "B2", Fault: "the same, and the replacement holds its leases under the zombie's very name; half of the jobs were dead and retried by an operator, so that both attempts have number 1", Tiers: both, run: namesakes,
			Workload: "as B1",
			Pass:     fenced,
		},
	}
}
