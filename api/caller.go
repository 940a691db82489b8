package api

import (
	"context"
	"net/http"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These headers of a request tell on whose behalf it is made.
const (
	headerUser          = "X-User-Id"
	headerCorrelationID = "X-Correlation-Id"
	maxCallerBytes      = 256
)

// callerOf returns the caller of a request: the owner of the token, and the user and correlation id that the request
// names.
func callerOf(who access.Principal, r *http.Request) outbox.Caller {
	c := outbox.Caller{
		Service: who.Name, User: r.Header.Get(headerUser),
		CorrelationID: r.Header.Get(headerCorrelationID),
	}
	if c.CorrelationID == "" {
		c.CorrelationID = requestID(r.Context())
	}
	return c
}

func callerIn(ctx context.Context) outbox.Caller {
	c, _ := ctx.Value(callerKey).(outbox.Caller)
	return c
}
