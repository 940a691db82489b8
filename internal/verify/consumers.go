package verify

// consumers returns family F: consumers that get a message twice act once.
func consumers() []Row {
	return []Row{
		{
			Name: "F1", Title: "Redelivered messages",
			Fault: "the consumer is killed with kill -9 (8 times, S: 60), and its sessions are terminated, inside transactions", Tiers: both, run: redeliveries,
			Workload: "2,000 messages (S: 10,000), each delivered ten times and again whenever it was not acknowledged, on 32 goroutines",
			Pass:     "exactly one effect per message: none partial, none twice; no inbox row without an effect",
		},
		{
			Name: "F2", Title: "Concurrent requests with one idempotency key",
			Fault: "100 callers use each idempotency key at once, and connections are cut before, inside and after their COMMITs", Tiers: both, run: idempotencyKeys,
			Workload: "60 keys (S: 1,000)", Settings: map[string]string{"max_connections": "200"},
			Pass: "one job and one effect per key; every caller gets the same id; no lost jobs, no orphans, no illegal status changes",
		},
	}
}
