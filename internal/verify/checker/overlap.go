package checker

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Execution is one attempt as its process recorded it.
type Execution struct {
	Epoch      int64
	Process    string
	Start, End time.Time // End is when the process died if it recorded no end
}

// Window is a period in which a process could not learn that its lease was over, because it was stopped or cut off.
type Window struct {
	Process     string // "" means all
	From, Until time.Time
	// Explains reports whether the window explains that an execution ran too long; nil explains all.
	Explains func(job string, x Execution) bool
}

// Overlaps holds the executions that overlapped.
type Overlaps struct {
	Explained   int
	Unexplained []string
	SameLease   []string // two executions under one epoch
}

// Add judges the executions of one job. An overlap of two is explained if the process of the earlier lease was in a
// window that lasted at least as long as a lease takes to lapse, that began before the later execution, and that had
// not been over for so long that the process must have learned of it.
func (o *Overlaps) Add(job string, executions []Execution, windows []Window, lapse time.Duration) {
	slices.SortFunc(executions, func(a, b Execution) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), a.Start.Compare(b.Start))
	})
	for i, a := range executions {
		for _, b := range executions[i+1:] {
			where := fmt.Sprintf("%s: epoch %d by %s from %s to %s, epoch %d by %s from %s", job,
				a.Epoch, a.Process, clock(a.Start), clock(a.End), b.Epoch, b.Process, clock(b.Start))
			if a.Epoch == b.Epoch {
				o.SameLease = append(o.SameLease, where)
			}
			if !a.End.After(b.Start) || !b.End.After(a.Start) {
				continue
			}
			explained := slices.ContainsFunc(windows, func(w Window) bool {
				return (w.Process == "" || w.Process == a.Process) && w.Until.Sub(w.From) >= lapse &&
					w.From.Before(b.Start) && w.Until.After(a.Start) && b.Start.Before(w.Until.Add(lapse)) &&
					(w.Explains == nil || w.Explains(job, a))
			})
			if explained {
				o.Explained++
			} else {
				o.Unexplained = append(o.Unexplained, where)
			}
		}
	}
}

// WentOn returns the executions of a job that went on after their lease was given up in their owner's name: another
// worker may have run the job at the same time. It leaves out executions that ended within slack of that.
func WentOn(job string, executions []Execution, givenUp map[Lease]time.Time, slack time.Duration) (bad []string) {
	for _, x := range executions {
		at, gone := givenUp[Lease{job, x.Epoch}]
		if gone && x.End.After(at.Add(slack)) {
			bad = append(bad, fmt.Sprintf("%s at epoch %d by %s: given up at %s, executed from %s to %s", job, x.Epoch,
				x.Process, clock(at), clock(x.Start), clock(x.End)))
		}
	}
	return bad
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
