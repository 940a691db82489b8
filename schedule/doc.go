// Package schedule enqueues jobs at given times: by cron expressions in a time zone, or at fixed intervals. Programs
// declare their schedules, the database stores them, and every process fires those that are due:
//
//	app.Run(ctx, &mux, app.Config{Schedules: []schedule.Schedule{
//		schedule.Cron("weekday-report", "0 7 * * 1-5", "Europe/Berlin", Report{}, schedule.Options{}),
//		schedule.Every("refresh-rates", 10*time.Minute, Refresh{}, schedule.Options{Missed: schedule.Skip}),
//	}})
//
// # Guarantees
//
//   - A tick enqueues one job, whatever the number of processes and whenever one of them is killed. The transaction
//     that locks a due schedule inserts its job and moves it to its next tick; an idempotency key made from schedule
//     and tick is a second guard.
//   - The database's clock decides when a schedule is due. The ticks are a pure function of the expression, so a
//     restart or a pause does not move them.
//   - A tick that no process fired in time is handled as [Options.Missed] directs, as soon as a process runs.
//   - A schedule that cannot be fired (the database refuses its job) is reported in the log and tried again every 20
//     seconds; it delays no other.
//
// # When the clocks change
//
// A schedule that names its hours, like "30 2 * * *", ticks once for each of its times. A time that does not exist
// because the clocks go forward ticks at the first instant after the change; several such times share one tick. A time
// that exists twice because the clocks go back ticks the first time.
//
// A schedule that ticks in every hour of the day ("0 * * * *"), or whose minutes begin with * ("*/15 2 * * *"), follows
// real time: it ticks whenever the clocks show one of its times, so it neither catches up nor pauses. The manual of
// Vixie's cron promises the same.
//
// # Declaring
//
// A process declares its schedules once, when it starts. Declaring an unchanged schedule again has no effect; a new
// expression moves the next tick; a new payload applies from the next tick on. Two versions of a program that run at
// once during a rollout do not alternate: the version that started last prevails until another starts. A schedule that
// is no longer declared goes on until somebody deletes it, and a schedule that an operator paused stays paused.
//
// # Threads
//
//	goroutine   started by   ended by      owns
//	Run         the caller   its context   everything
package schedule
