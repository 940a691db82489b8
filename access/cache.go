package access

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	lookTimeout = 3 * time.Second

	// cacheFor is how long a look at the database is valid, counted from before it was made. Together with the look's
	// own timeout it leaves one of the five seconds after which a revoked token is refused.
	cacheFor = 4 * time.Second

	// cacheSize limits the cached tokens and, separately, the cached ids without a token: invented ids displace no
	// token.
	cacheSize = 10_000

	// strangers is how many looks at a time are made for ids that recently had no token: invented ids leave most of the
	// pool's connections to others.
	strangers = 2
)

// tokenCache caches looks at tokens. Callers that want the same id at the same time share one look.
type tokenCache struct {
	find   func(ctx context.Context, id string) (*known, error)
	flight singleflight.Group
	queue  chan struct{} // for looks for strangers

	mu      sync.Mutex
	tokens  map[string]look
	nothing map[string]look
}

// look is the database's answer and its time of validity.
type look struct {
	token *known // nil if there is none
	until time.Time
}

func newTokenCache(find func(context.Context, string) (*known, error)) *tokenCache {
	return &tokenCache{
		find: find, queue: make(chan struct{}, strangers), tokens: map[string]look{},
		nothing: map[string]look{},
	}
}

// get returns a token in a state that is at most cacheFor old; nil if there is none. A caller that stops waiting does
// not stop the look for the others.
func (c *tokenCache) get(ctx context.Context, id string) (*known, error) {
	if l, ok := c.recall(id, time.Now()); ok {
		return l.token, nil
	}
	shared := c.flight.DoChan(id, func() (any, error) { return c.look(context.WithoutCancel(ctx), id) })
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case result := <-shared:
		token, _ := result.Val.(*known)
		return token, result.Err
	}
}

func (c *tokenCache) look(ctx context.Context, id string) (*known, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if !c.familiar(id) {
		select {
		case c.queue <- struct{}{}:
			defer func() { <-c.queue }()
		case <-ctx.Done():
			return nil, ErrCrowd
		}
	}
	asked := time.Now()
	token, err := c.find(ctx, id)
	if err == nil {
		c.remember(id, look{token, asked.Add(cacheFor)}, asked)
	}
	return token, err
}

// ErrCrowd is returned for a token that is not known yet, while too many of those are looked up. It may be valid: ask
// again.
var ErrCrowd = errors.New("too many unknown tokens at a time")

// familiar reports whether the id had a token at the last look.
func (c *tokenCache) familiar(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.tokens[id]
	return ok
}

func (c *tokenCache) recall(id string, now time.Time) (look, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, looks := range []map[string]look{c.tokens, c.nothing} {
		if l, ok := looks[id]; ok && now.Before(l.until) {
			return l, true
		}
	}
	return look{}, false
}

func (c *tokenCache) remember(id string, l look, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, id)
	delete(c.nothing, id)
	looks := c.tokens
	if l.token == nil {
		looks = c.nothing
	}
	if len(looks) >= cacheSize {
		makeRoom(looks, now)
	}
	looks[id] = l
}

// makeRoom drops expired looks, or else any looks until a tenth is free, at the cost of a new look for each.
func makeRoom(looks map[string]look, now time.Time) {
	for id, l := range looks {
		if !now.Before(l.until) {
			delete(looks, id)
		}
	}
	for id := range looks {
		if len(looks) <= cacheSize*9/10 {
			return
		}
		delete(looks, id)
	}
}

// forget makes the next caller look again.
func (c *tokenCache) forget(id string) {
	c.flight.Forget(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, id)
	delete(c.nothing, id)
}
