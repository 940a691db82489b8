package outbox

import (
	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Caller identifies who asked for a job, as far as that is known. It is stored in the job's headers (caller-service,
// caller-user, correlation-id), passed on to the job's follow-ups and handed to its handler.
type Caller struct {
	// Service is the service that enqueued the job. Over the API it is the name of the token or the JWT, which no
	// request can change; a producer in Go may set anything.
	Service string
	// User is the user on whose behalf the job was enqueued, as stated by the service.
	User string
	// CorrelationID is shared by everything that the same cause set off. Over the API it is X-Correlation-Id, or else
	// the request's id.
	CorrelationID string
}

// Caller returns who asked for the job, as far as its headers record it.
func (c *Claimed) Caller() Caller {
	headers := c.Headers()
	return Caller{
		Service: headers[engine.HeaderService], User: headers[engine.HeaderUser],
		CorrelationID: headers[engine.HeaderCorrelationID],
	}
}
