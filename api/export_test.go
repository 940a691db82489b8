package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Streams sets what a stream's patience is in tests; 0 leaves a bound as it is.
func (c *Config) Streams(lookEvery, keepAlive, writeTimeout time.Duration, maxChanges, maxWaiting int) {
	c.lookEvery, c.keepAlive, c.writeTimeout, c.maxChanges, c.maxWaiting = lookEvery, keepAlive, writeTimeout, maxChanges, maxWaiting
}

// DeafAfter sets after how long of looks that fail streams end.
func (c *Config) DeafAfter(d time.Duration) { c.deafAfter = d }

// BodyTimeout sets how long a body may take to arrive.
func (c *Config) BodyTimeout(d time.Duration) { c.bodyTimeout = d }

// Rest sets how long the hub does not look while no change is known.
func (c *Config) Rest(d time.Duration) { c.restAfter = func(time.Duration) time.Duration { return d } }

// FieldPlaces says where requests have the fields of Go.
var FieldPlaces = fieldPlaces

// StoreGroup stores the jobs of requests as one group, until ctx ends, and returns the code and the outcome in the
// answer to each; "" for one that is stored. No request with an idempotency key may be stored: it would ask how it was.
func StoreGroup(ctx context.Context, producer *outbox.Producer, requests ...outbox.Request) (answers []string) {
	s := &server{config: Config{Producer: producer}}
	for _, a := range s.storeGroup(ctx, requests) {
		answer := ""
		if a.err != nil {
			p := problemOf(a.err)
			answer = p.Code + " " + p.Outcome
		}
		answers = append(answers, answer)
	}
	return answers
}
