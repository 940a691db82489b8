package dispatcher

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Verdict is what an attempt of a job that is not stored comes to.
type Verdict struct {
	Status        outbox.Status // succeeded, retrying, pending (snoozed or interrupted), failed or dead
	Delay         time.Duration // until it is to be tried again
	Code, Message string        // of the error, if there was one
}

// Attempt carries out an attempt of a job that no dispatcher has claimed, for
// those who keep jobs elsewhere: package memory. A panic is an error, and errors
// mean what they mean in a dispatcher's handlers, but for [Unavailable]: nobody
// remembers an outage, and it is a failure like any other. Of the kind's config,
// Retry, which may not be nil, and FailOn are heeded.
func Attempt(ctx context.Context, handler Handler, job *outbox.Claimed, kind KindConfig) Verdict {
	kind.OutageLimit = 0
	a := &attempt{job: job, route: &route{kind: job.Kind, handler: handler, config: kind}}
	a.err = call(ctx, handler, job)
	o := settleFor(a, causeOf(ctx))
	return Verdict{Status: o.status, Delay: o.delay, Code: o.code, Message: o.message}
}
