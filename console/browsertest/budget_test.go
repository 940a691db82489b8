package browsertest

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	firstVisit = 60 << 10 // bytes of the first page and all its files, as they come over the network
	// firstPaint is when a page must show something here, at the best of some visits. On a quiet machine it takes at
	// most 150 ms; those that run tests have other things to do.
	firstPaint = 600 * time.Millisecond
	visits     = 5
)

func TestTheFirstVisitIsSmall(t *testing.T) {
	c := newConsole(t)
	for range 60 {
		c.enqueue(receipt{1, "ada@example.com"}, outbox.Options{})
	}
	tab := c.signedIn(c.root) // the first page: its files have been fetched for the login
	tab.mu.Lock()
	bytes := tab.bytes
	tab.mu.Unlock()
	t.Logf("login and first page: %.1f KB over the network", bytes/1024)
	if bytes == 0 || bytes > firstVisit {
		t.Errorf("the first visit takes %.1f KB, want at most %d", bytes/1024, firstVisit>>10)
	}
}

// The pages that people begin with show something at once, whether the browser has their files or not.
func TestPagesArePaintedSoon(t *testing.T) {
	c := newConsole(t)
	c.evilJob()
	id := c.enqueue(receipt{1, "ada@example.com"}, outbox.Options{})
	for range 60 {
		c.enqueue(receipt{1, "ada@example.com"}, outbox.Options{})
	}
	c.measured()
	tab := c.signedIn(c.root)
	for _, path := range []string{"problems", "now", "jobs", "job?id=" + id.String(), "letters", "queue?queue=default"} {
		tab.visit(c.root + path) // what is read for all viewers together is there then
		for _, cold := range []bool{true, false} {
			call(tab, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: cold})
			best := time.Hour
			for n := 0; n < visits && best > firstPaint; n++ {
				tab.visit(c.root + path)
				best = min(best, tab.painted())
			}
			t.Logf("%s, files cached: %t: first contentful paint after %s", path, !cold, best.Round(time.Millisecond))
			if best > firstPaint {
				t.Errorf("%s, files cached: %t: the first contentful paint takes %s at the best of %d visits, want at most %s", path, !cold, best, visits, firstPaint)
			}
		}
	}
}

// painted returns how long after the page was asked for something of it was painted first.
func (t *tab) painted() time.Duration {
	t.Helper()
	ms := ask[float64](t, `new Promise((done) => new PerformanceObserver((l, o) => l.getEntriesByName("first-contentful-paint").forEach((e) => { o.disconnect(); done(e.startTime); })).observe({ type: "paint", buffered: true }))`)
	return time.Duration(ms * float64(time.Millisecond))
}
