// Package bridge makes a job from each message of a broker: it fetches messages, stores their jobs in one transaction,
// and then acknowledges them.
//
//	source, err := nats.OpenSource(config, nats.SourceConfig{…}) // or package kafka's
//	b, err := bridge.New(pool, bridge.Config{Bridges: []bridge.BridgeConfig{
//		{Name: "orders", Source: source, Kind: "order.place"},
//	}})
//	err = b.Run(ctx) // until ctx ends
//
//	broker ── Fetch ──▶ jobs, with the idempotency key source/id ── COMMIT ──▶ Ack ── broker
//
// If anything fails between the commit and the acknowledgement, a message comes again, and finds its job by the
// idempotency key: each message becomes exactly one job, for as long as the job and its key are kept. A [Source] is a
// broker's side; packages relay/nats and relay/kafka have one each.
//
// # One process at a time
//
// Any number of processes may run a bridge. One of them fetches; the others wait until its lease, a row of
// outbox.inbox_positions, has lapsed. Each transaction that stores jobs extends the lease and names its epoch:
//
//	A  fetches 1 to 500                                  stores them: not our epoch any more, rolled back, no Ack
//	B               lease has lapsed: epoch 2, fetches 1 to 500 again, stores, acknowledges
//
// So the jobs of a key are stored in the order of its messages, even if A was stopped for an hour.
package bridge

// # Files
//
//	bridge.go   New, Run
//	config.go   Config
//	move.go     fetch, store, acknowledge
//	own.go      which process fetches
//	store.go    the transaction
//	message.go  the job of a message, and the dead letter of one that cannot be a job
//	metrics.go  what is counted
