package outbox

import (
	"context"
)

// Encode checks a request as [Enqueue] does and returns it in a form that can be kept and enqueued later: the arguments
// become a [Raw] with the bytes that would be stored. If args are a [Defaulter], their DefaultOptions fill the fields
// that opts leave at the zero value.
//
// Fields that belong together are filled together: a producer that sets any field of one of these groups sets the whole
// group: when the job is due (RunAt, Delay), what its death does (Key.OnDeath, Key.ParkAfter), and what a full key does
// (Key.MaxQueued, Key.WhenFull).
//
// For a request that is not acceptable, Encode returns its options alone and [*InvalidError]s, joined. It does not
// accept Options.Protect, because a payload is sealed for one job.
func Encode(args Args, opts Options) (Request, error) {
	opts.fillFrom(args)
	if opts.Protect != nil {
		return Request{Options: opts}, invalid("Options.Protect", "is set: what is sealed is sealed for one job")
	}
	row, err := newRow(context.Background(), args, &opts)
	if err != nil {
		return Request{Options: opts}, err
	}
	return Request{
		Args:    Raw{KindName: row.Kind, Payload: row.Payload, ContentType: row.ContentType},
		Options: opts,
	}, nil
}
