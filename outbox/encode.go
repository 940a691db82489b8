package outbox

import (
	"context"
)

// Encode checks a request as [Enqueue] does and returns it in a form that can be kept and enqueued
// later: the arguments are a [Raw] with the bytes that would be stored, and the options have the
// DefaultOptions of args, if they are a [Defaulter], where opts have the zero value.
//
// What belongs together is taken together: a producer that says when (RunAt, Delay), what a death does
// (Key.OnDeath, Key.ParkAfter) or what a full key does (Key.MaxQueued, Key.WhenFull) says all of it.
//
// A request that is not acceptable gets [*InvalidError]s, joined, and comes back with its options
// alone. Options.Protect is not: what is sealed is sealed for one job.
func Encode(args Args, opts Options) (Request, error) {
	opts.fillFrom(args)
	if opts.Protect != nil {
		return Request{Options: opts}, invalid("Options.Protect", "is set: what is sealed is sealed for one job")
	}
	row, err := newRow(context.Background(), args, &opts)
	if err != nil {
		return Request{Options: opts}, err
	}
	return Request{Args: Raw{KindName: row.Kind, Payload: row.Payload, ContentType: row.ContentType}, Options: opts}, nil
}
