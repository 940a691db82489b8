package outbox

import (
	"errors"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// resize is a job with a result.
type resize struct {
	Returns[size2D]
	URL string
}

func (resize) Kind() string { return "resize" }

type size2D struct{ Width, Height int }

// What a handler returns is said by the type alone: nothing of it is stored.
func TestReturnsStoresNothing(t *testing.T) {
	t.Parallel()
	payload, _, err := encode(resize{URL: "a"}, ofJob)
	if want := `{"URL":"a"}`; string(payload) != want || err != nil {
		t.Errorf("stored of the arguments: %s, %v, want %s", payload, err, want)
	}
}

func TestCompleteWithStoresTheTypedResult(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id, err := Enqueue(t.Context(), db, resize{URL: "a"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	job := &Job[resize]{Claimed: lease(t, db, id)}
	if err := CompleteWith(t.Context(), db, job, size2D{8, 6}); err != nil {
		t.Fatal(err)
	}
	got, _, err := engine.DecodeResult[size2D](ask[[]byte](t, db, `SELECT result FROM outbox.history`))
	if got != (size2D{8, 6}) || err != nil {
		t.Errorf("result = %v, %v", got, err)
	}

	// A result that JSON cannot hold changes nothing.
	stuck := &Job[stuck]{Claimed: &Claimed{ID: id}}
	err = CompleteWith(t.Context(), untouched{t: t}, stuck, func() {})
	if bad, ok := errors.AsType[*InvalidError](err); !ok || bad.Field != "result" {
		t.Errorf("a function as a result = %v, want an InvalidError", err)
	}
}

type stuck struct{ Returns[func()] }

func (stuck) Kind() string { return "stuck" }

// isWatched is in the options of a job that somebody waits for.
var isWatched = func() (w watched) {
	*engine.InternalOf(&w) = true
	return w
}()

// Watched is NULL for all others, by whichever way jobs are stored.
func TestWatchedIsStoredByEveryWay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, n := range map[string]int{"one": 1, "INSERT": copyFrom - 2, "COPY": copyFrom + 2} {
		exec(t, db, `DELETE FROM outbox.jobs`)
		exec(t, db, `DELETE FROM outbox.idempotency_keys`)
		requests := make([]Request, n)
		for i := range requests {
			requests[i] = Request{greet{"ada"}, Options{}}
			*engine.InternalOf(&requests[i].Options) = i%2 == 0
		}
		if n == 1 {
			for _, opts := range []Options{{watched: isWatched}, {watched: isWatched, IdempotencyKey: "k"}, {}, {IdempotencyKey: "l"}} {
				if _, err := Enqueue(t.Context(), db, greet{"ada"}, opts); err != nil {
					t.Fatal(err)
				}
			}
		} else if _, err := EnqueueMany(t.Context(), db, requests); err != nil {
			t.Fatal(err)
		}
		if !ask[bool](t, db, `SELECT count(watched) = count(*) / 2 AND bool_and(watched) FROM outbox.jobs`) {
			t.Errorf("%s: not half of the jobs are watched, and the others NULL", name)
		}
	}
}
