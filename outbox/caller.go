package outbox

import (
	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Caller is who asked for a job, as far as is known. It is stored in the job's
// headers (caller-service, caller-user, correlation-id), goes on to its follow-ups and
// is handed to its handler.
type Caller struct {
	// Service enqueued the job. Over the API it is the name of the token or the JWT,
	// which no request can change; a producer in Go says what it likes.
	Service string
	// User is for whom, by the word of the service.
	User string
	// CorrelationID ties together what was set off by the same cause. Over the API it
	// is X-Correlation-Id, else the request's id.
	CorrelationID string
}

// Caller returns who asked for the job, as far as its headers say.
func (c *Claimed) Caller() Caller {
	headers := c.Headers()
	return Caller{Service: headers[engine.HeaderService], User: headers[engine.HeaderUser], CorrelationID: headers[engine.HeaderCorrelationID]}
}
