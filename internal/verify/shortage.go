package verify

// shortages is the part of family A in which the machine runs out of something.
func shortages() []Row {
	return []Row{
		{
			Name: "A10", Fault: "workers killed by the kernel for want of memory, by 10 poison jobs", Tiers: both, run: outOfMemory,
			Workload: "P 2,000, S 10,000 other jobs, 3 places for workers with 256 MiB each, filled again as they fall empty",
			Pass:     "each poison job spends exactly 3 attempts, then it is dead; all others done, L1 0, illegal moves 0; every place filled and ready in the end",
		},
	}
}
