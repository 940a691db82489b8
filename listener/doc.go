// Package listener turns Postgres notifications into wake-ups.
//
//	wake := listener.NewSignal()
//	l, err := listener.New("", dispatcher.Channel, wake, listener.Config{Pool: pool, Canary: pool})
//	go l.Run(ctx) // until ctx ends
//	for range wake { … } // look for what is new; poll as well, and often while l.Listening() is false
//
// It owns one connection that does nothing but LISTEN. Every few seconds it asks whether the other end still answers,
// and every half a minute it proves that notifications still arrive. It does not know what the wake-ups are for.
//
//	             LISTEN              one slot, never blocks
//	Postgres ──────────────▶ Run ────────────────────────────▶ Signal ──▶ scan
//	   ▲                      │ ▲
//	   │ NOTIFY canary        │ └── back after a backoff: "you may have missed something"
//	   └── pool ◀── canary ◀──┘
//	                  │
//	                  └── came back? ──▶ Listening, OnListening ──▶ poll seldom or often
//
// # Guarantees
//
//   - A notification is a hint. It carries no data here, many of them make one wake-up, and anybody may forge one.
//     Poll as well for anything that must not be missed.
//   - The signal is set for every notification that arrives, and each time that LISTEN succeeds, including the first:
//     the scan that follows finds whatever was committed while nobody listened.
//   - The connection is always being read. No handler blocks it, however slowly the signal is read, because a client
//     that stops reading its notifications keeps vacuum from cleaning up in the whole database.
//   - Listening is true only on evidence: a canary, which is a notification on a channel of this listener alone, has
//     made its way from the pool through Postgres to the listener. This detects poolers that swallow LISTEN, and an
//     UNLISTEN by a third party. A connection that lost its canary is replaced. When a canary is late or cannot be
//     sent, other notifications count as evidence.
//   - A half-open connection, or a server that hangs, is detected and replaced within 8 seconds, even where an
//     intermediary acknowledges data that it swallows: every 2.5 s the listener asks the other end for a sign of life,
//     which costs the server no query.
//   - With the defaults, any other kind of deafness is detected within 45 seconds at worst: 30 between canaries, 10
//     to send one while the pool is broken, 5 to miss it.
//   - After losing the server, the listener tries again after 50 to 150 ms, and then within a second after each
//     attempt, at times that differ between processes. An attempt gets 5 seconds per host, unless the connection string
//     sets connect_timeout. A standby or read-only server counts as unreachable.
//   - Run returns nil soon after its context ends, and leaves nothing running.
//
// In plain words: while Listening is true you will be woken; while it is false, poll.
//
// # Threads
//
//	goroutine    started by              ended by                     owns
//	Run          the caller              its context                  the connection, run, session
//	the canary   session.listening       the session's end            the verdict on the session
//	setup timer  newSession              LISTEN or the session's end  nothing: it closes the socket
//
// Only Run's goroutine uses the connection; the canary's goroutine writes its questions directly to the socket. The
// others may close the underlying socket, which makes every call on the connection return.
package listener
