package browsertest

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	firstVisit = 60 << 10 // bytes of the first page and all its files, as they come over the network
	firstPaint = 150 * time.Millisecond
	// crowded is how much longer the first paint may take here: machines that run tests have other things to do.
	crowded = 60
)

func TestTheFirstVisitIsSmallAndQuick(t *testing.T) {
	c := newConsole(t)
	for range 60 {
		c.enqueue(receipt{1, "ada@example.com"}, outbox.Options{})
	}
	tab := c.signedIn(c.root) // the first page: its files have been fetched for the login
	painted := func() time.Duration {
		ms := ask[float64](tab, `new Promise((done) => new PerformanceObserver((l, o) => l.getEntriesByName("first-contentful-paint").forEach((e) => { o.disconnect(); done(e.startTime); })).observe({ type: "paint", buffered: true }))`)
		return time.Duration(ms * float64(time.Millisecond))
	}
	first := painted()
	tab.mu.Lock()
	bytes := tab.bytes
	tab.mu.Unlock()
	t.Logf("login and first page: %.1f KB over the network, first contentful paint of the page after %s", bytes/1024, first.Round(time.Millisecond))
	if bytes == 0 || bytes > firstVisit {
		t.Errorf("the first visit takes %.1f KB, want at most %d", bytes/1024, firstVisit>>10)
	}
	if first == 0 || first > crowded*firstPaint {
		t.Errorf("the first contentful paint took %s, want %s, and here at most %d times that", first, firstPaint, crowded)
	}
}
