// Package memory carries out jobs that are lost when the process ends. It is for
// inputs that cannot be stored: an open file, a stream, a channel, a secret that
// must not touch a disk. Whatever can be stored belongs into package outbox, where
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
//   - A job that Submit took is carried out once by this process, as long as the
//     process lives; again only if [Options.MaxAttempts] says so, or its handler
//     (dispatcher.Snooze, dispatcher.Unavailable).
//   - No more than [Config.Capacity] jobs wait and [Config.Workers] run. Submit never
//     blocks: it returns [ErrBackpressure].
//   - Handlers are those of package dispatcher: the same errors mean the same, and so
//     does the kind's config, dispatcher.Unavailable and its OutageLimit included.
//     job.Progress and checkpoints are kept with the job, in memory; job.Log goes to
//     [Config.Logger], and dispatcher.Step remembers nothing. What needs a job's row (job.Complete,
//     job.Guard, job.Then, dispatcher.StepTx) returns [ErrNotStored].
//   - When Run is told to stop, jobs that were taken are carried out for the grace
//     period; then running ones are cut off with the cause dispatcher.ErrShutdown, and
//     what had not started is dropped. Both are said in the log.
//   - What became of a job is known for [Config.Keep] after its end, for the latest
//     10 000 jobs.
//
// # Threads
//
//	goroutine     started by   ended by                        owns
//	Run           the caller   its context, after the drain    the forgetting
//	worker        Run          a stop, when nothing waits      the attempt it runs
package memory
