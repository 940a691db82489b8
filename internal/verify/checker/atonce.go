package checker

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Span is a period in which something happened.
type Span struct {
	From, Until time.Time
	What        string
}

func (s Span) String() string {
	return fmt.Sprintf("%s from %s to %s", s.What, clock(s.From), clock(s.Until))
}

// AtOnce returns the largest number of spans that share an instant, and these spans. A span that ends when another
// begins does not overlap it.
func AtOnce(spans []Span) (most int, which []Span) {
	spans = slices.SortedFunc(slices.Values(spans), func(a, b Span) int {
		return cmp.Or(a.From.Compare(b.From), a.Until.Compare(b.Until))
	})
	var open []Span
	for _, s := range spans {
		open = slices.DeleteFunc(open, func(o Span) bool { return !o.Until.After(s.From) })
		if !s.Until.After(s.From) {
			continue
		}
		if open = append(open, s); len(open) > most {
			most, which = len(open), slices.Clone(open)
		}
	}
	return most, which
}
