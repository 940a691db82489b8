package api

import (
	"fmt"
	"sync"

	"github.com/posthaste-dev/posthaste/access"
)

// places bounds the streams that are open at once, and those of each caller: one who
// opens as many as he can leaves most of them to the others.
type places struct {
	most, each int

	mu      sync.Mutex
	taken   int
	takenBy map[caller]int
}

func newPlaces(most, each int) *places {
	return &places{most: most, each: each, takenBy: map[caller]int{}}
}

// take takes a place, until leave is called, once.
func (p *places) take(who access.Principal) (leave func(), refused *Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := caller{who.Tenant, who.Name}
	switch {
	case p.takenBy[of] >= p.each:
		return nil, rateLimited.because(fmt.Sprintf("It has %d streams open, as many as one caller may have of a process.", p.each)).after(10)
	case p.taken >= p.most:
		return nil, overloaded.because(fmt.Sprintf("%d streams are open, as many as a process has.", p.most)).after(10)
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
