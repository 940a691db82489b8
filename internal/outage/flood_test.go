package outage

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// flood returns a Flood, and what it has summed up so far.
func flood() (f *Flood, sums *[]string) {
	sums = new([]string)
	return &Flood{Summary: func(n int, last any) { *sums = append(*sums, strconv.Itoa(n)+" "+last.(string)) }}, sums
}

func TestAFloodIsSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sums := flood()
		lines := 0
		for n := range 1500 { // 15 s
			if f.Logs("a", strconv.Itoa(n)) {
				lines++
			}
			if n%500 == 0 && !f.Logs("b", "b") {
				t.Error("a few lines of a sort are no flood")
			}
			time.Sleep(10*time.Millisecond + time.Microsecond)
		}
		time.Sleep(time.Minute)
		if want := []string{"990 999", "500 1499"}; lines != logged || !slices.Equal(*sums, want) {
			t.Errorf("%d lines and the sums %q, want %d and %q", lines, *sums, logged, want)
		}
		if !f.Logs("a", "later") || len(f.sorts) != 1 {
			t.Error("the flood is not over")
		}
	})
}

func TestAFloodEndsWithItsSum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sums := flood()
		for n := range 25 {
			f.Logs("a", strconv.Itoa(n))
		}
		f.Logs("b", "b")
		f.End()
		if want := []string{"15 24"}; !slices.Equal(*sums, want) {
			t.Errorf("the sums are %q, want %q", *sums, want)
		}
		for range 2 * logged {
			if !f.Logs("a", "late") {
				t.Error("a line after the end is counted, and nobody sums it up")
			}
		}
		time.Sleep(time.Minute)
		if len(*sums) != 1 {
			t.Errorf("after the end there are the sums %q", *sums)
		}
	})
}

func TestSoManySortsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := flood()
		for n := range 2 * maxSorts {
			f.Logs(strconv.Itoa(n), "")
		}
		if len(f.sorts) != maxSorts {
			t.Errorf("%d sorts are counted, want %d", len(f.sorts), maxSorts)
		}
		for range 2 * logged {
			if !f.Logs("another", "") {
				t.Error("a line of a sort that is not counted was left out")
			}
		}
		time.Sleep(time.Minute)
		if len(f.sorts) > 0 {
			t.Errorf("%d sorts are remembered", len(f.sorts))
		}
	})
}
