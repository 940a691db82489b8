package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Streams sets what a stream's patience is in tests; 0 leaves a bound as it is.
func (c *Config) Streams(lookEvery, keepAlive, writeTimeout time.Duration, maxChanges, maxWaiting int) {
	c.lookEvery, c.keepAlive, c.writeTimeout, c.maxChanges, c.maxWaiting = lookEvery, keepAlive, writeTimeout, maxChanges, maxWaiting
}

// DeafAfter sets after how long of looks that fail streams end.
func (c *Config) DeafAfter(d time.Duration) { c.deafAfter = d }

// Rest sets how long the hub does not look while no change is known.
func (c *Config) Rest(d time.Duration) { c.restAfter = func(time.Duration) time.Duration { return d } }

// CatchUp returns what is sent first to readers that come back with these positions at the
// same moment.
func CatchUp(ctx context.Context, pool outbox.Beginner, tenant outbox.ID, positions ...changefeed.Position) ([]string, error) {
	h := &hub{pool: pool, maxChanges: maxChanges}
	f := &feed{tenant: tenant, readers: map[*reader]bool{}}
	if err := h.begin(ctx, f); err != nil {
		return nil, err
	}
	for _, from := range positions {
		f.joining = append(f.joining, &reader{from: from, begun: make(chan error, 1), batches: make(chan *batch, 1), ended: make(chan struct{})})
	}
	readers := append([]*reader{}, f.joining...)
	h.catchUp([]*feed{f}, time.Now().Add(time.Minute))
	sent := make([]string, len(readers))
	for i, r := range readers {
		if err := <-r.begun; err != nil {
			return nil, err
		}
		sent[i] = string((<-r.batches).text)
	}
	return sent, nil
}
