package verify

// shortages is the part of family A in which the machine runs out of something.
func shortages() []Row {
	return []Row{
		{
			Name: "A9", Timed: true, Fault: "the data's disk full; then that of pg_wal, so that the server panics", Tiers: both, run: fullDisks, disks: (*Run).smallDisks,
			Settings: map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "64MB"},
			Workload: "P 3,000, S 50,000 jobs from 2 producers that repeat, 2 workers; each disk is full for P 8 s, S 60 s",
			Pass:     "lost 0, unexpected 0, orphans 0/0, effects missing 0 and twice 0, our processes alive, first completion ≤ 5 s after there is room, ≤ 1 line of trouble a second in each log",
		},
		{
			Name: "A10", Timed: true, Fault: "workers killed by the kernel for want of memory, by 10 poison jobs", Tiers: both, run: outOfMemory,
			Workload: "P 2,000, S 10,000 other jobs, 3 places for workers with 256 MiB each, filled again as they fall empty",
			Pass:     "each poison job spends exactly 3 attempts, then it is dead; all others done, L1 0, illegal moves 0; every place filled and ready in the end",
		},
	}
}
