package verify

// shortages returns the part of family A in which the machine runs out of something.
func shortages() []Row {
	return []Row{
		{
			Name: "A9", Timed: true, Title: "Disks full",
			Fault: "the data disk is full; then the disk of pg_wal is full, so that the server panics", Tiers: both,
			run: fullDisks, disks: (*Run).smallDisks,
			Settings: map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "64MB"},
			Workload: "3,000 jobs (S: 50,000) from 2 producers that retry; 2 workers; each disk is full for 12 s (S: 60 s)",
			Pass:     jobsSafe + "; every worker keeps running; first completed job ≤ 5 s after there is space again; ≤ 1 log line per second from each worker while a disk is full",
		},
		{
			Name: "A10", Timed: true, Title: "Workers killed by the OOM killer",
			Fault: "10 poison jobs need more memory than there is, so that the kernel's OOM killer kills their workers",
			Tiers: both, run: outOfMemory,
			Workload: "2,000 other jobs (S: 10,000); 3 slots for workers with 256 MiB each; a slot whose worker was killed gets a new one",
			Pass:     "every poison job uses exactly 3 attempts and is then dead; every other job completes; L1 holds, no illegal status changes; every slot has a ready worker at the end",
		},
	}
}
