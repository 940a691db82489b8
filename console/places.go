package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/callers"
)

// queueWait is the longest that a page waits for its turn.
const queueWait = 500 * time.Millisecond

// places limits the pages in progress: in total, and per caller to half of that. A page has its place until it is sent.
// Without the limit per caller, a slow reader, or sign-ins at a provider that does not answer, would keep everybody
// out. All who are not signed in count as one caller.
type places struct {
	all chan struct{}
	mu  sync.Mutex
	of  map[callers.Caller]*placesOf
}

type placesOf struct {
	taken chan struct{}
	pages int // that have a place or wait for one
}

func newPlaces(most int) places {
	return places{all: make(chan struct{}, most), of: map[callers.Caller]*placesOf{}}
}

var errPlaces = refusal{
	http.StatusTooManyRequests, "Too many pages are being made",
	"The console keeps the database free for jobs. Try again in a moment.",
}

// take waits until the page may be made.
func (p *places) take(ctx context.Context, who callers.Caller) (leave func(), err error) {
	own := p.enter(who)
	patience := time.NewTimer(queueWait)
	defer patience.Stop()
	if err := fill(ctx, own.taken, patience.C); err != nil {
		p.exit(who)
		return nil, err
	}
	if err := fill(ctx, p.all, patience.C); err != nil {
		<-own.taken
		p.exit(who)
		return nil, err
	}
	return func() {
		<-p.all
		<-own.taken
		p.exit(who)
	}, nil
}

func fill(ctx context.Context, room chan struct{}, tooLong <-chan time.Time) error {
	select {
	case room <- struct{}{}:
		return nil
	default:
	}
	select {
	case room <- struct{}{}:
		return nil
	case <-tooLong:
		return errPlaces
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *places) enter(who callers.Caller) *placesOf {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.of[who]
	if own == nil {
		own = &placesOf{taken: make(chan struct{}, max(cap(p.all)/2, 1))}
		p.of[who] = own
	}
	own.pages++
	return own
}

func (p *places) exit(who callers.Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own := p.of[who]; own.pages == 1 {
		delete(p.of, who)
	} else {
		own.pages--
	}
}
