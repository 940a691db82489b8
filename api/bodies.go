package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// smallBody is how much any request may keep in memory without asking: no more than its connection takes anyway, so the
// limit on connections bounds it. Large bodies do not delay small requests.
const smallBody = 8 << 10

// growth sets when a body of undeclared length reserves room for the largest body: when it has reached this fraction of
// that.
const growth = 8

// bodies limits the bytes of bodies in memory at once, from before their first byte is read until their request is
// done, and those of large answers, see holdAnswer. A request that finds no room waits a little, with the body still on
// the client's side of the connection, and is then refused. One caller may take half of what others leave, and batches
// that are larger than other bodies can be, three quarters of the total: neither leaves the others without room.
type bodies struct {
	total int64
	large int64 // a larger body counts as large
	queue chan struct{}

	mu        sync.Mutex
	taken     int64
	takenBig  int64
	takenBy   map[caller]int64
	roomAgain chan struct{} // closed when room is released; nil while nobody waits
}

func newBodies(total, large int64, waiting int) *bodies {
	return &bodies{total: total, large: large, queue: make(chan struct{}, waiting), takenBy: map[caller]int64{}}
}

// room is the room taken by one request; at first none.
type room struct {
	of    *bodies
	who   caller
	bytes int64
	big   bool
}

func (b *bodies) room(who access.Principal) *room {
	return &room{of: b, who: callers.Of(who)}
}

// take takes n bytes as soon as there is room for them. The error is a [Problem], or ctx's.
func (r *room) take(ctx context.Context, n int64) error {
	again, why := r.try(n)
	if why == nil {
		return nil
	}
	select {
	case r.of.queue <- struct{}{}:
		defer func() { <-r.of.queue }()
	default:
		return why
	}
	patience := time.NewTimer(queueWait)
	defer patience.Stop()
	for why != nil {
		select {
		case <-again:
			again, why = r.try(n)
		case <-patience.C:
			return why
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// try takes n bytes if there is room, or returns why there is none and when to try again.
func (r *room) try(n int64) (again <-chan struct{}, why *Problem) {
	b := r.of
	b.mu.Lock()
	defer b.mu.Unlock()
	big := n > b.large
	mine := b.takenBy[r.who] + n
	left := b.total - (b.taken - b.takenBy[r.who]) // by others
	switch {
	case mine > b.total/2:
		why = rateLimited.because("The bodies of its other requests take up the memory that one caller's may.").after(1)
	case mine > left/2 || big && b.takenBig+n > b.total/4*3:
		why = overloaded.because("The bodies of other requests take up the memory that there is for them.").after(1)
	}
	if why != nil {
		if b.roomAgain == nil {
			b.roomAgain = make(chan struct{})
		}
		return b.roomAgain, why
	}
	r.bytes, r.big = n, big
	b.add(r, n)
	return nil, nil
}

// add adds n bytes to the count, or subtracts them. The caller holds mu.
func (b *bodies) add(r *room, n int64) {
	b.taken += n
	if r.big {
		b.takenBig += n
	}
	if b.takenBy[r.who] += n; b.takenBy[r.who] == 0 {
		delete(b.takenBy, r.who)
	}
}

// release releases all of the room. It may be called again.
func (r *room) release() { r.shrinkTo(0) }

// shrinkTo releases all but n bytes. It may be called again.
func (r *room) shrinkTo(n int64) {
	if r.bytes <= n {
		return
	}
	b := r.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(r, n-r.bytes)
	r.bytes = n
	if b.roomAgain != nil {
		close(b.roomAgain)
		b.roomAgain = nil
	}
}

// read reads a body of up to limit bytes once there is room for it. A body of undeclared length may be as long as the
// route allows.
func (r *room) read(w http.ResponseWriter, req *http.Request, limit int64) ([]byte, error) {
	size := req.ContentLength
	if size > limit {
		return nil, &http.MaxBytesError{Limit: limit} // it is refused unread
	}
	from := http.MaxBytesReader(w, req.Body, limit)
	var begun []byte
	if size < 0 {
		var err error
		if begun, err = io.ReadAll(io.LimitReader(from, smallBody+1)); err != nil || len(begun) <= smallBody {
			return begun, err
		}
		size = limit
	}
	takes := size
	if begun != nil {
		takes += size / growth // it exists twice while it grows for the last time
	}
	if size > smallBody {
		if err := r.take(req.Context(), takes); err != nil {
			return nil, err
		}
	}
	if begun == nil {
		data := make([]byte, size)
		_, err := io.ReadFull(from, data)
		return data, err
	}
	data := begun
	for {
		if len(data) == cap(data) {
			larger := 2 * int64(cap(data))
			if larger > size/growth {
				larger = size + 1 // one more byte, to detect the end
			}
			data = append(make([]byte, 0, larger), data...)
		}
		n, err := from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if errors.Is(err, io.EOF) {
			if int64(len(data)) <= size/growth && int64(cap(data)) > size/growth {
				data = slices.Clone(data) // there is room for both
			}
			r.shrinkTo(int64(cap(data)))
			return data, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// body is a body that has been read. It is closed once it is copied, so that it is not in memory twice.
type body struct{ data []byte }

func (b *body) Read(p []byte) (n int, err error) {
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	n = copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// WriteTo lets io.Copy copy it at once: a buffer then grows to its size rather than to the next power of two.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.data)
	b.data = nil
	return int64(n), err
}

// Close releases it.
func (b *body) Close() error {
	b.data = nil
	return nil
}

func bodyProblem(err error, limit int64) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return bodyTooLarge.because("It is more than " + bytesText(limit) + ".")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return requestTimeout.because("")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return problemOf(err)
	}
	return malformed.because("The body ended early.")
}
