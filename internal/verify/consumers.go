package verify

// consumers is family F: consumers that get a message twice act once.
func consumers() []Row {
	return []Row{
		{
			Name: "F1", Fault: "the consumer killed with -9 (P: 8, S: 60 times), and its sessions terminated, in mid-transaction", Tiers: both, run: redeliveries,
			Workload: "P 2,000, S 10,000 messages, delivered ten times each and whenever they were not acknowledged, on 32 goroutines",
			Pass:     "effects exactly one a message, partial 0, twice 0, records without an effect 0",
		},
		{
			Name: "F2", Fault: "100 callers use each idempotency key at once, and connections are cut before, inside and after their COMMITs", Tiers: both, run: idempotencyKeys,
			Workload: "P 60, S 1,000 keys", Settings: map[string]string{"max_connections": "200"},
			Pass: "one job and one effect a key, the same id told to every caller, lost 0, orphans 0/0, illegal moves 0",
		},
	}
}
