// Package reaper does the work that no living worker does: it takes jobs away from workers that died, closes jobs whose
// deadline has passed, promotes the jobs of keys that no other process has moved on, creates the partitions of the
// history and the events in advance, trims data beyond its retention, samples the depth of the queues, and ends
// listeners that have stopped reading. Package app runs one in each process
// without Config.NoReap.
//
//	r, err := reaper.New(pool, reaper.Config{Wake: wake, Listening: l.Listening}) // of a listener, as a dispatcher's
//	err = r.Run(ctx)                                                              // until ctx ends
//
// Its chores:
//
//	            every      what                              statements a minute
//	expire      4.75 s     lapsed leases → retrying, dead, cancelled          13, or 27: see below
//	deadline    10 min     deadlines that have come → expired                  0, or 75: see below
//	keys        2 s        stuck keys → promoted; idle keys → forgotten       0 without keys, 30 with some
//	depth       30 s       gauges, from one count                              2, and 4 of the one that counts
//	measure     1 min      what is open and has happened, for charts           3, and 2 of the one that counts
//	watch       32 s       wedged listeners of ours                            2
//	partition   1 h        history and events, HistoryAhead days                  0
//	trim        1 h        history, events, dead letters, attempts, inbox …    0
//
// While Config.Listening returns false, and for a minute after a deadline was seen, the reaper polls for deadlines
// every 0.8 s. It polls for lapsed leases every 2.25 s while Config.Listening returns false, or while looking ahead for
// leases that are about to lapse takes long.
//
// The reaper runs in every process and has no leader: two reapers that act at once skip each other's rows or find
// nothing left to do.
//
// Guarantees:
//
//   - The jobs of a worker that dies run again within three seconds after their leases have lapsed, or five for
//     leases of less than two seconds. As a rule they run at once, because the reaper waits for a lease that is about
//     to lapse. They keep their old place in the queue by the database's clock, except that a job that has lost leases
//     before waits for 1 s to a minute more.
//   - A job whose deadline has passed is closed within a second, whatever state it was in, and however many finished
//     jobs had a deadline. It takes 5 s if the job was stored less than 5 s before its deadline, its notification was
//     lost although Config.Listening returns true, and it is the first deadline in a minute.
//   - A job that keeps killing its workers ends dead.
//   - Outages of Postgres spend no attempts.
//   - Nothing that an open job needs is trimmed, but dead letters that nobody has dealt with for 90 days are removed.
//   - An idempotency key becomes free exactly when its job is gone.
//   - Chores that trim, count or scan at length take a small, fixed part of the time, however large the tables have
//     grown.
package reaper
