// Package reaper does what no living worker will do: it takes jobs away from
// workers that died, closes jobs whose deadline has come, keeps the partitions of the history and the events ahead,
// trims what is beyond its retention, samples how deep the queues are, and ends listeners that have
// stopped reading.
//
//	            every      what                              statements a minute
//	expire      4.75 s     lapsed leases → retrying, dead, cancelled          13, or 27: see below
//	deadline    10 min     deadlines that have come → expired                  0, or 75: see below
//	depth       30 s       gauges, from one count                              2, and 4 of the one that counts
//	measure     1 min      what is open and has happened, for charts           3, and 2 of the one that counts
//	watch       32 s       wedged listeners of ours                            2
//	partition   1 h        history and events, HistoryAhead days                  0
//	trim        1 h        history, events, dead letters, attempts, inbox …    0
//
// While Config.Hearing says no, and for a minute after a deadline was seen, deadlines
// are looked for every 0.8 s. While it says no, or it takes long to look ahead for leases that are about to lapse,
// lapsed leases are looked for every 2.25 s.
//
// It runs in every process and has no leader: whatever two reapers do at once,
// they skip each other's rows or find nothing left to do.
//
// Guarantees: the jobs of a worker that dies run again within three seconds after their leases have lapsed, or five of
// leases of less than two seconds (as a rule at once: a lease that is about to lapse is waited for), by the database's
// clock and at their old place in the queue, but for one that has lost leases before, which waits for 1 s to a minute
// more; a job whose deadline has come is closed within a second, whatever it was doing, and however many had a deadline
// and are done (5 s if it was stored less than that before, its notification was lost though Config.Hearing says yes,
// and it is the first deadline in a minute); a job that keeps killing its workers ends dead; an outage of Postgres
// spends no attempts; nothing that an open job needs is trimmed, but dead letters that nobody has done anything about
// for 90 days are removed; an idempotency key is free again exactly when its job is gone. What trims, counts or scans
// at length takes a small, fixed part of the time, however large the tables have grown.
package reaper
