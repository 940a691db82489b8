package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However slow the database is, what it said is not believed for longer than five
// seconds from the moment when it can have said it.
func TestALookIsBelievedForLessThanFiveSeconds(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{0, time.Second, lookTimeout - time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			c := newTokenCache(func(context.Context, string) (*known, error) {
				looks++
				time.Sleep(took)
				return &known{}, nil
			})
			for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
				if _, err := c.get(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
			}
			if looks != 2 {
				t.Errorf("%d looks in 5 s when one takes %s, want 2", looks, took)
			}
		})
	}
}

func TestAFailedLookIsNotRemembered(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	c := newTokenCache(func(context.Context, string) (*known, error) { return nil, away })
	if _, err := c.get(t.Context(), "a"); !errors.Is(err, away) {
		t.Errorf("got %v, want %v", err, away)
	}
	c.find = func(context.Context, string) (*known, error) { return &known{}, nil }
	if token, err := c.get(t.Context(), "a"); token == nil || err != nil {
		t.Errorf("got %v, %v; want the token", token, err)
	}
}

func TestMadeUpIDsPushNoTokenOut(t *testing.T) {
	t.Parallel()
	var looks atomic.Int32
	c := newTokenCache(func(_ context.Context, id string) (*known, error) {
		if looks.Add(1); strings.HasPrefix(id, "t") {
			return &known{}, nil
		}
		return nil, nil
	})
	get := func(id string) {
		if _, err := c.get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	get("token")
	before := time.Now()
	for i := range cacheSize + 500 {
		get(fmt.Sprint(i))
	}
	if n := len(c.nothing); n > cacheSize {
		t.Errorf("%d ids that are none are remembered, want at most %d", n, cacheSize)
	}
	looks.Store(0)
	if get("token"); time.Since(before) < cacheFor && looks.Load() != 0 {
		t.Error("the token was pushed out")
	}
	for i := range cacheSize + 500 {
		get(fmt.Sprint("t", i))
	}
	if n := len(c.found); n > cacheSize {
		t.Errorf("%d tokens are remembered, want at most %d", n, cacheSize)
	}
}

// A flood of ids that are none occupies a few connections only, and tokens in use
// do not queue behind it.
func TestStrangersQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var atOnce, most atomic.Int32
		c := newTokenCache(func(_ context.Context, id string) (*known, error) {
			if id == "token" {
				return &known{}, nil
			}
			most.Store(max(most.Load(), atOnce.Add(1)))
			defer atOnce.Add(-1)
			time.Sleep(time.Second)
			return nil, nil
		})
		if _, err := c.get(t.Context(), "token"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(cacheFor)
		var refused atomic.Int32
		for i := range 100 {
			go func() {
				if _, err := c.get(t.Context(), fmt.Sprint(i)); errors.Is(err, ErrTooManyUnknown) {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		asked := time.Now()
		if _, err := c.get(t.Context(), "token"); err != nil || time.Since(asked) > 0 {
			t.Errorf("a token in use waited for %s, %v", time.Since(asked), err)
		}
		time.Sleep(10 * time.Second)
		if most.Load() != maxUnknownLooks || refused.Load() == 0 {
			t.Errorf("%d looks at once and %d turned away, want %d and some", most.Load(), refused.Load(), maxUnknownLooks)
		}
	})
}
