package dispatcher

import (
	"cmp"
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Verdict is what an attempt of a job that is not stored comes to.
type Verdict struct {
	Status        outbox.Status // succeeded, retrying, pending (snoozed or interrupted), failed or dead
	Delay         time.Duration // until it is to be tried again
	Code, Message string        // of the error, if there was one

	// Of an outage ([Unavailable]), which is a failure as above only once it has lasted
	// for OutageLimit; before, no attempt is spent.
	OutageLimit time.Duration // 0: it is none
	Wait        time.Duration // that the handler asked for; 0: as long as the outage has lasted, 1 s to 5 min
}

// Attempt carries out an attempt of a job that no dispatcher has claimed, for
// those who keep jobs elsewhere: package memory. A panic is an error, and errors
// mean what they mean in a dispatcher's handlers; how long an outage has lasted is
// for the caller to remember. Of the kind's config, Backoff, which may not be nil,
// FailOn and OutageLimit hold.
func Attempt(ctx context.Context, handler Handler, job *outbox.Claimed, kind KindConfig) Verdict {
	kind.OutageLimit = cmp.Or(kind.OutageLimit, defaultOutageLimit)
	a := &attempt{job: job, route: &route{kind: job.Kind, handler: handler, config: kind}}
	a.err = call(ctx, handler, job)
	o := settleFor(a, causeOf(ctx))
	return Verdict{Status: o.status, Delay: o.delay, Code: o.code, Message: o.message, OutageLimit: o.outageLimit, Wait: o.wait}
}
