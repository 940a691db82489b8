package outbox

import (
	"context"
)

// Freeze checks a request as [Enqueue] does and returns its arguments as the bytes
// that would be stored: for whoever keeps a request in order to enqueue it later.
func Freeze(args Args, opts Options) (Raw, error) {
	opts.fillFrom(args)
	if opts.Protect != nil {
		return Raw{}, invalid("Options.Protect", "is set: what is sealed is sealed for one job")
	}
	row, err := newRow(context.Background(), args, &opts)
	if err != nil {
		return Raw{}, err
	}
	return Raw{KindName: row.Kind, Payload: row.Payload, ContentType: row.ContentType}, nil
}
