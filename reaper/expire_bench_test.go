package reaper

import (
	"testing"
	"time"
)

// BenchmarkExpire reports lapsed leases a second; 5 000 is the least that is
// good enough.
func BenchmarkExpire(b *testing.B) {
	r, db := newRig(b, Config{})
	const jobs = 20_000
	for b.Loop() {
		b.StopTimer()
		exec(b, db, `DELETE FROM outbox.jobs`)
		storeRunning(b, db, jobs, -time.Minute)
		b.StartTimer()
		expirePass(b, r)
	}
	b.ReportMetric(float64(jobs)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
