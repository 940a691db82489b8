// Package dispatcher claims due jobs, carries them out with Go handlers, and
// settles them: claim → attempt → settle.
//
//	wake-up, timer, poll, start
//	        │
//	   ┌────▼────┐ claim    ┌────────┐  ┌─────────┐ outcome ┌────────┐
//	   │  drain  ├─────────▶│ buffer ├─▶│ workers ├────────▶│ settle ├─▶ history,
//	   │ (queue) │  batch   └────────┘  └─────────┘         └────────┘   retry, …
//	   └─────────┘                  ▲ extend ▲
//	                                └ leases ┘
//
// Guarantees: a due job starts at least once; while its lease is live, it is
// this process's alone; nothing that a worker writes after losing the lease takes
// effect, because every write names the epoch of its claim. Handlers may see a
// job again after a crash, a lost connection or a stalled process: make them
// idempotent with job.Complete, inbox.Once, or by looking at domain state under
// lock before the side effect.
package dispatcher
