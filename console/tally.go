package console

import (
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// tally is a number that package watch knew when the page was made: no page counts for it.
type tally struct {
	n    int64
	asOf time.Time // zero if it is not known
}

// tallyOf returns the number beside a page's name in the navigation.
func (v *visit) tallyOf(path string) (t tally) {
	switch path {
	case "problems":
		if found, ok := v.site.watch.Problems.Known(v.tenant()); ok {
			t = tally{int64(len(found.Problems)), found.AsOf}
		}
	case "letters":
		t = v.openIn(outbox.Failed, outbox.Dead)
	}
	return t
}

// openIn returns how many of the jobs that the viewer may see have one of the statuses.
func (v *visit) openIn(statuses ...outbox.Status) (t tally) {
	counted := v.site.watch.Counts.Known(v.tenant())
	if counted == nil {
		return t
	}
	t.asOf = counted.AsOf
	for _, of := range counted.Jobs {
		for _, s := range statuses {
			t.n += of.Jobs[s]
		}
	}
	return t
}
