package pgtest

import "time"

const (
	firstPause   = 2 * time.Millisecond
	longestPause = 50 * time.Millisecond
)

// Looks yields whenever a test should look at what it waits for, until within has passed: at once, again after 2 ms,
// and from then on ever more rarely, at last every 50 ms. Looking takes processor from the work that is awaited, and
// from the other tests.
//
//	for range pgtest.Looks(time.Minute) {
//		if done() {
//			return
//		}
//	}
//	t.Fatal("not done within a minute")
func Looks(within time.Duration) func(yield func() bool) {
	return func(yield func() bool) {
		pause := firstPause
		for end := time.Now().Add(within); yield() && time.Now().Before(end); pause = min(pause*13/10, longestPause) {
			time.Sleep(pause)
		}
	}
}
