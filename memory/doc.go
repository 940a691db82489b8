// Package memory runs jobs that are lost when the process ends. It is for inputs that cannot be stored: an open file, a
// stream, a channel, a secret that must not touch a disk. Anything that can be stored belongs in package outbox, where
// a job survives.
//
//	var mux memory.Mux
//	memory.Handle(&mux, func(ctx context.Context, job *outbox.Job[Transcode]) error {
//		return transcode(ctx, job.Args.Upload) // an io.Reader: the value that was submitted
//	})
//	queue, err := memory.New(&mux, memory.Config{})
//	go queue.Run(ctx)
//	…
//	id, err := queue.Submit(Transcode{Upload: file}, memory.Options{})
//	if errors.Is(err, memory.ErrBackpressure) { … }
//
// # Guarantees
//
//   - This process runs an accepted job once, as long as the process lives. It runs the job again only if
//     [Options.MaxAttempts] allows it or its handler asks for it (dispatcher.Snooze, dispatcher.Unavailable).
//   - No more than [Config.Capacity] jobs wait and [Config.Concurrency] run. Submit never blocks: it returns
//     [ErrBackpressure].
//   - Handlers are those of package dispatcher. The same errors have the same meaning, and the kind's config applies,
//     including dispatcher.Unavailable and its OutageLimit. The queue keeps job.Progress and checkpoints in memory,
//     with the job; job.Log goes to [Config.Logger], and dispatcher.Step remembers nothing. Calls that need a job's row
//     (job.Complete, job.Guard, job.Then, dispatcher.StepTx) return [ErrNotStored].
//   - When Run is asked to stop, it works on accepted jobs for the grace period; then it cuts running ones off with
//     the cause dispatcher.ErrShutdown and drops those that have not started. It logs both.
//   - The outcome of a job is known for [Config.Keep] after its end, for the latest 10 000 jobs.
//
// # Threads
//
//	goroutine     started by   ended by                        owns
//	Run           the caller   its context, after the drain    the forgetting
//	worker        Run          a stop, when nothing waits      the attempt it runs
package memory
