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
	// own timeout it leaves one of the five seconds after which a revoked token or an ended session is refused.
	cacheFor = 4 * time.Second

	// cacheSize limits the cached finds and, separately, the cached ids under which nothing was found: invented ids
	// displace no token.
	cacheSize = 10_000

	// maxUnknownLooks limits the looks that are made at once for ids that recently had no token: invented ids leave
	// most of the pool's connections to others.
	maxUnknownLooks = 2
)

// cache caches looks at the database for values by their ids. Callers that want the same id at the same time share one
// look.
type cache[T any] struct {
	find   func(ctx context.Context, id string) (*T, error)
	flight singleflight.Group
	queue  chan struct{} // for looks for unknown ids; nil lets all of them look at once

	mu      sync.Mutex
	found   map[string]look[T]
	nothing map[string]look[T]
}

// look is the database's answer and its time of validity.
type look[T any] struct {
	value *T // nil if there is none
	until time.Time
}

func newCache[T any](find func(context.Context, string) (*T, error)) *cache[T] {
	return &cache[T]{find: find, found: map[string]look[T]{}, nothing: map[string]look[T]{}}
}

// newTokenCache returns a cache of tokens, whose ids anybody can invent.
func newTokenCache(find func(context.Context, string) (*known, error)) *cache[known] {
	c := newCache(find)
	c.queue = make(chan struct{}, maxUnknownLooks)
	return c
}

// get returns a value in a state that is at most cacheFor old; nil if there is none. A caller that stops waiting does
// not stop the look for the others.
func (c *cache[T]) get(ctx context.Context, id string) (*T, error) {
	if l, ok := c.recall(id, time.Now()); ok {
		return l.value, nil
	}
	shared := c.flight.DoChan(id, func() (any, error) { return c.look(context.WithoutCancel(ctx), id) })
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case result := <-shared:
		value, _ := result.Val.(*T)
		return value, result.Err
	}
}

func (c *cache[T]) look(ctx context.Context, id string) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if c.queue != nil && !c.familiar(id) {
		select {
		case c.queue <- struct{}{}:
			defer func() { <-c.queue }()
		case <-ctx.Done():
			return nil, ErrTooManyUnknown
		}
	}
	asked := time.Now()
	value, err := c.find(ctx, id)
	if err == nil {
		c.remember(id, look[T]{value, asked.Add(cacheFor)}, asked)
	}
	return value, err
}

// ErrTooManyUnknown is returned for a token that is not known yet, while too many of those are looked up. It may be
// valid: ask again.
var ErrTooManyUnknown = errors.New("too many unknown tokens at a time")

// familiar reports whether something was found under the id at the last look.
func (c *cache[T]) familiar(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.found[id]
	return ok
}

func (c *cache[T]) recall(id string, now time.Time) (look[T], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, looks := range []map[string]look[T]{c.found, c.nothing} {
		if l, ok := looks[id]; ok && now.Before(l.until) {
			return l, true
		}
	}
	return look[T]{}, false
}

// remember remembers a look, unless a newer one has overtaken it.
func (c *cache[T]) remember(id string, l look[T], now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found[id].until.After(l.until) || c.nothing[id].until.After(l.until) {
		return
	}
	delete(c.found, id)
	delete(c.nothing, id)
	looks := c.found
	if l.value == nil {
		looks = c.nothing
	}
	if len(looks) >= cacheSize {
		makeRoom(looks, now)
	}
	looks[id] = l
}

// makeRoom drops expired looks, or else any looks until a tenth is free, at the cost of a new look for each.
func makeRoom[T any](looks map[string]look[T], now time.Time) {
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
func (c *cache[T]) forget(id string) {
	c.flight.Forget(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.found, id)
	delete(c.nothing, id)
}
