package api

import (
	"context"
	"net/http"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Headers of a request that say on whose behalf it is made.
const (
	headerUser          = "X-User-Id"
	headerCorrelationID = "X-Correlation-Id"
	maxCallerBytes      = 256
)

// callerOf is who makes a request: who has the token, and what he says of himself.
func callerOf(who access.Principal, r *http.Request) outbox.Caller {
	c := outbox.Caller{Service: who.Name, User: r.Header.Get(headerUser), CorrelationID: r.Header.Get(headerCorrelationID)}
	if c.CorrelationID == "" {
		c.CorrelationID = requestID(r.Context())
	}
	return c
}

func callerIn(ctx context.Context) outbox.Caller {
	c, _ := ctx.Value(callerKey).(outbox.Caller)
	return c
}
