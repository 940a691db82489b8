// Package schedule enqueues jobs when the clock says so: by cron expressions in a
// time zone, or every so long. Programs declare their schedules, the database
// keeps them, and every process fires those that are due:
//
//	app.Run(ctx, &mux, app.Config{Schedules: []schedule.Schedule{
//		schedule.Cron("weekday-report", "0 7 * * 1-5", "Europe/Berlin", Report{}, schedule.Options{}),
//		schedule.Every("refresh-rates", 10*time.Minute, Refresh{}, schedule.Options{Missed: schedule.Skip}),
//	}})
//
// # Guarantees
//
//   - A tick enqueues one job, whatever the number of processes and whenever one of
//     them is killed. The transaction that locks a due schedule inserts its job and
//     moves it to its next tick; an idempotency key of schedule and tick guards the
//     same a second time.
//   - The database's clock says when a schedule is due. The ticks are a pure function
//     of the expression, so that a restart or a pause does not move them.
//   - What nobody fired in time is fired by what [Options.Missed] says, as soon as
//     a process is there.
//   - A schedule that cannot be fired (the database refuses its job) is reported in
//     the log, tried again every 20 seconds, and holds up no other.
//
// # When the clocks change
//
// A schedule that names its hours, like "30 2 * * *", ticks once for each of its
// times. A time that does not exist because the clocks go forward comes at the
// first instant after the change; several such times come together as one tick. A
// time that exists twice because the clocks go back ticks when it comes first.
//
// A schedule that ticks in every hour of the day ("0 * * * *"), or whose minutes
// begin with * ("*/15 2 * * *"), goes by real time: whenever the clocks show one
// of its times it ticks, so that it neither catches up nor rests. This is what the
// manual of Vixie's cron promises, too.
//
// # Declaring
//
// A process declares its schedules once, when it starts. Declaring an unchanged
// schedule again has no effect; another expression moves the next tick; another payload
// counts from the next tick on. Two versions of a program that run at once during
// a rollout do not argue: whichever started last has the say until another starts.
// A schedule that is no longer declared goes on until somebody deletes it, and
// what an operator paused stays paused.
//
// # Threads
//
//	goroutine   started by   ended by      owns
//	Run         the caller   its context   everything
package schedule
