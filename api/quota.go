package api

import (
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// quota limits how many streams, or how many requests and answers in progress, there are at once, in total and per
// caller: a caller that takes as many as it can leaves most of them to the others.
type quota struct {
	what       string
	again      int // seconds, for refused callers
	most, each int

	mu      sync.Mutex
	taken   int
	takenBy map[caller]int
}

func newQuota(what string, again, most, each int) *quota {
	return &quota{what: what, again: again, most: most, each: each, takenBy: map[caller]int{}}
}

// take takes one unit until leave is called, once.
func (q *quota) take(who access.Principal) (leave func(), refused *Problem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := callers.Of(who)
	switch {
	case q.takenBy[of] >= q.each:
		return nil, rateLimited.because(fmt.Sprintf("This caller already has %d %s (the maximum).", q.each,
			q.what)).after(q.again)
	case q.taken >= q.most:
		return nil, overloaded.because(fmt.Sprintf("The server already has %d %s (the maximum).", q.most,
			q.what)).after(q.again)
	}
	q.taken++
	q.takenBy[of]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.taken--
		if q.takenBy[of]--; q.takenBy[of] == 0 {
			delete(q.takenBy, of)
		}
	}, nil
}
