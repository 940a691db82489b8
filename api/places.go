package api

import (
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/access"
)

// places bounds what there is at once of streams, or of requests that are worked on and
// answers on their way, and what each caller has of it: one who takes as many as he can
// leaves most of them to the others.
type places struct {
	what       string
	again      int // seconds, for callers that are refused
	most, each int

	mu      sync.Mutex
	taken   int
	takenBy map[caller]int
}

func newPlaces(what string, again, most, each int) *places {
	return &places{what: what, again: again, most: most, each: each, takenBy: map[caller]int{}}
}

// take takes a place, until leave is called, once.
func (p *places) take(who access.Principal) (leave func(), refused *Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := caller{who.Tenant, who.Name}
	switch {
	case p.takenBy[of] >= p.each:
		return nil, rateLimited.because(fmt.Sprintf("This caller already has %d %s (the maximum).", p.each, p.what)).after(p.again)
	case p.taken >= p.most:
		return nil, overloaded.because(fmt.Sprintf("The server already has %d %s (the maximum).", p.most, p.what)).after(p.again)
	}
	p.taken++
	p.takenBy[of]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.takenBy[of]--; p.takenBy[of] == 0 {
			delete(p.takenBy, of)
		}
	}, nil
}
