package buffer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// While tenants share the queue, one of eight workers takes express jobs only. The others take all jobs in their order.
func TestReservedWorkersTakeExpressJobsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(8, 1, func(int) time.Time { return time.Time{} })
		b.Share(true)
		taken := make(chan int, 20)
		for range 8 {
			go func() { // each runs one job, for ever
				if job, _, ok := b.Next(false); ok {
					taken <- job
				}
			}()
		}
		for job := range 10 {
			b.Put(job, false)
		}
		synctest.Wait()
		if n := len(taken); n != 7 {
			t.Errorf("%d workers took a job, want 7", n)
		}
		b.Put(100, true)
		synctest.Wait()
		if n := len(taken); n != 8 || b.ExpressWaiting() != 0 {
			t.Errorf("%d workers took a job, want also the one for the express job", n)
		}
		b.Share(false)
		go func() { _, _, _ = b.Next(true) }() // the worker of job 0 is free again
		synctest.Wait()
		if left := b.Close(); !slices.Equal(left, []int{8, 9}) {
			t.Errorf("jobs %v wait, want the last two", left)
		}
	})
}

// Only jobs that have waited too long are taken away, and the workers of a closed buffer end.
func TestStaleJobsAreTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := New(1, 0, func(job int) time.Time { return began.Add(time.Duration(job) * time.Second) })
		for job := range 4 {
			b.Put(job, job%2 == 0)
		}
		if stale := b.TakeStale(began.Add(time.Second)); !slices.Equal(stale, []int{0, 1}) {
			t.Errorf("took %v, want those of the first second", stale)
		}
		left := b.Close()
		if _, _, ok := b.Next(false); ok || !slices.Equal(left, []int{2, 3}) {
			t.Errorf("left %v, and a worker got a job after Close: %t", left, ok)
		}
	})
}
