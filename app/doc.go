// Package app combines the other packages into one process: a listener that wakes, a dispatcher that works, a reaper
// that cleans up, a scheduler, and an admin server that reports on them. Package server adds the API, and the command
// posthaste adds webhooks to that; a program with handlers of its own is about as short:
//
//	var mux dispatcher.Mux
//	dispatcher.Handle(&mux, sendReceipt)
//	ctx, cut := app.Signals(context.Background())
//	err := app.Run(ctx, &mux, app.Config{DatabaseURL: os.Getenv("DATABASE_URL"), Cut: cut})
//
// # Guarantees
//
//   - Before the process has started, only a mistake in the configuration makes Run return. Afterwards Run waits out
//     any failure, above all an outage of the database.
//   - The database may be down when the process starts, and the schema missing or older than the build. Dispatcher,
//     reaper and scheduler start once both are available.
//   - When ctx ends, the process becomes unready, claiming stops, jobs that have not started are given back, running
//     jobs get the grace period, outcomes are stored, and Run returns. A second signal (see [Signals]) ends the waiting
//     at once: the jobs still running run again elsewhere when their leases lapse.
//   - Handlers cannot starve the process: it has connections of its own, apart from [Config.Pool].
//
// # Threads
//
//	goroutine     started by   ended by                        owns
//	Run           the caller   its context                     the order of the stop
//	schema gate   Run          the schema being there, stop    Config.Migrate
//	listener      Run          stop                            see package listener
//	dispatcher    Run          stop, after the drain           see package dispatcher
//	reaper        Run          stop                            see package reaper
//	scheduler     Run          stop                            see package schedule
//	components    Run          stop                            see Config.Components
//	admin server  Run          the end of all the others       its connections
package app
