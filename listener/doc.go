// Package listener turns Postgres notifications into wake-ups.
//
// It owns one connection that does nothing but LISTEN, asks every few seconds
// whether anybody is at the other end, and proves every half a minute that it still
// hears. It knows nothing of what the wake-ups are for.
//
//	             LISTEN              one slot, never blocks
//	Postgres ──────────────▶ Run ────────────────────────────▶ Signal ──▶ scan
//	   ▲                      │ ▲
//	   │ NOTIFY canary        │ └── back after a back-off: "you may have missed something"
//	   └── pool ◀── canary ◀──┘
//	                  │
//	                  └── came back? ──▶ Hearing, OnHearing ──▶ poll seldom or often
//
// # Guarantees
//
//   - A notification is a hint. It carries no data here, many of them are one
//     wake-up, and anybody may forge one. What must not be missed has to be
//     polled for, too.
//   - The signal is set for every notification that arrives, and each time that
//     LISTEN has succeeded, the first time included: whatever was committed
//     while nobody listened is found by the scan that follows.
//   - The connection is always being read. No handler blocks it, however slowly
//     the signal is read, because a client that stops reading its notifications
//     keeps vacuum from cleaning up in the whole database.
//   - Hearing is true only on evidence: a canary, that is a notification which
//     only this listener listens for, made its way from the pool through Postgres
//     to us. This finds out poolers that swallow LISTEN, and an UNLISTEN behind
//     our back. A connection that lost its canary is replaced. Notifications of
//     others count as evidence when a canary is late or cannot be sent.
//   - A half-open connection, or a server that hangs, is found out and replaced
//     within 8 seconds, even where something between acknowledges what it
//     swallows: every 2.5 s the other end is asked for a sign of life, which costs
//     it no query.
//   - With the defaults, deafness of any other kind is found out within 45 seconds
//     at worst: 30 between canaries, 10 to send one while the pool is broken, 5 to
//     miss it.
//   - A lost server is tried again after 50 to 150 ms, and no later than a second
//     after the last attempt, by each process at its own time. An attempt gets 5
//     seconds per host, unless the connection string sets connect_timeout. A
//     standby or read-only server counts as unreachable.
//   - Run returns nil soon after its context ends, and leaves nothing behind.
//
// In plain words: while Hearing is true you will be woken; while it is false,
// look for yourself.
//
// # Threads
//
//	goroutine    started by              ended by                     owns
//	Run          the caller              its context                  the connection, run, session
//	the canary   session.listening       the session's end            the verdict on the session
//	setup timer  newSession              LISTEN or the session's end  nothing: it closes the socket
//
// Only Run's goroutine touches the connection; the canary's writes its questions to
// the socket past it. The others may close the socket beneath it, which makes every
// call on the connection return.
package listener
