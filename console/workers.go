package console

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/operator"
)

func (s *site) workers(v *visit) error {
	all, err := v.operator.Workers(v.ctx())
	if err != nil {
		return err
	}
	return v.render(workersPage(v, all))
}

// slots returns how many jobs a worker runs at once, in all its queues.
func slots(w operator.Worker) (n int) {
	for _, of := range w.Queues {
		n += of
	}
	return n
}

// queuesOf describes a worker's queues with how many jobs of each it runs at once.
func queuesOf(w operator.Worker) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(w.Queues)) {
		all = append(all, name+" × "+strconv.Itoa(w.Queues[name]))
	}
	return strings.Join(all, ", ")
}

// versions returns how many workers run each version.
func versions(all []operator.Worker) map[string]int {
	n := map[string]int{}
	for _, w := range all {
		n[w.Version]++
	}
	return n
}

// signs are the shapes of states other than those of jobs.
var signs = map[string]string{
	"good": "M1.5 6.5l3 3 6-7",
	"warn": "M6 1.5L11 10.5H1zM6 5v2.5M6 9v.2",
	"bad":  "M2.5 2.5l7 7M9.5 2.5l-7 7",
	"run":  "M3 1.5v9l7-4.5z", "paused": "M4 2.5v7M8 2.5v7",
}
