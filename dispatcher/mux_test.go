package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// wantPanic runs register, which has to panic with an InvalidError for each of fields.
func wantPanic(t *testing.T, register func(*dispatcher.Mux), says string, fields ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		said := recover()
		err, _ := said.(error)
		if err == nil || !strings.HasPrefix(err.Error(), "dispatcher: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("panic = %v, want an error with %q", said, says)
			return
		}
		if diff := cmp.Diff(fields, fieldsOf(err)); diff != "" {
			t.Errorf("%v: fields (-want +got):\n%s", err, diff)
		}
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%v is no InvalidError", err)
		}
	}()
	register(new(dispatcher.Mux))
}

func TestMuxRefusesWhatIsABug(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *outbox.Claimed) error { return nil }
	hook := func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil }
	for name, c := range map[string]struct {
		register func(*dispatcher.Mux)
		want     string
	}{
		"two handlers for a kind": {func(m *dispatcher.Mux) { m.HandleRaw("a", nothing); m.HandleRaw("a", nothing) }, `kind is "a", which has a handler already`},
		"typed and raw": {func(m *dispatcher.Mux) {
			m.HandleRaw("probe", nothing)
			dispatcher.Handle(m, func(context.Context, *outbox.Job[probe]) error { return nil })
		}, `kind is "probe", which has a handler already`},
		"two hooks": {func(m *dispatcher.Mux) {
			dispatcher.OnDeath(m, hook)
			dispatcher.OnDeath(m, hook)
		}, `kind is "probe:on_death", which has a handler already`},
		"no kind":                  {func(m *dispatcher.Mux) { m.HandleRaw("", nothing) }, "kind is empty"},
		"a kind that no job has":   {func(m *dispatcher.Mux) { m.HandleRaw("send mail", nothing) }, `kind is "send mail": byte 4 is " "`},
		"a kind that ends in more": {func(m *dispatcher.Mux) { m.HandleRaw("mail ", nothing) }, `kind is "mail ": byte 4 is " "`},
		"too long a kind":          {func(m *dispatcher.Mux) { m.HandleRaw(strings.Repeat("k", 129), nothing) }, "kind is 129 bytes long"},
		"too long a hook's kind": {func(m *dispatcher.Mux) {
			dispatcher.OnDeath(m, func(context.Context, *outbox.Job[dispatcher.Ended[longKind]]) error { return nil })
		}, "kkk:on_death\", is 134 bytes long, want at most 128"},
	} {
		t.Run(name, func(t *testing.T) { wantPanic(t, c.register, c.want, "kind") })
	}
	wantPanic(t, func(m *dispatcher.Mux) {
		m.HandleRaw("a", nothing, dispatcher.KindConfig{}, dispatcher.KindConfig{})
	}, `config was given 2 times for the kind "a"`, "config")
	for name, register := range map[string]func(*dispatcher.Mux){
		"probe":            func(m *dispatcher.Mux) { dispatcher.Handle[probe](m, nil) },
		"raw":              func(m *dispatcher.Mux) { m.HandleRaw("raw", nil) },
		"many":             func(m *dispatcher.Mux) { m.HandleManyRaw("many", nil, dispatcher.BatchConfig{}) },
		"probe:on_success": func(m *dispatcher.Mux) { dispatcher.OnSuccess[probe](m, nil) },
		"probe:on_death":   func(m *dispatcher.Mux) { dispatcher.OnDeath[probe](m, nil) },
	} {
		wantPanic(t, register, fmt.Sprintf("handler of the kind %q is nil", name), "handler")
	}
	for _, register := range []func(*dispatcher.Mux){
		func(m *dispatcher.Mux) { dispatcher.HandleResult[returning[int], int](m, nil) },
		func(m *dispatcher.Mux) { dispatcher.OnResult[returning[int], int](m, nil) },
		func(m *dispatcher.Mux) { dispatcher.HandleMany[probe](m, nil, dispatcher.BatchConfig{}) },
	} {
		wantPanic(t, register, "is nil", "handler")
	}
	var mux dispatcher.Mux
	mux.HandleRaw(strings.Repeat("k", 128), nothing)
	mux.HandleRaw("A9_.:/-", nothing)
}

// longKind is a kind whose hook has no room for its name.
type longKind struct{}

func (longKind) Kind() string { return strings.Repeat("k", 125) }

func TestMuxKindsAreSorted(t *testing.T) {
	mux := new(dispatcher.Mux)
	for _, kind := range []string{"b", "c", "a"} {
		mux.HandleRaw(kind, func(context.Context, *outbox.Claimed) error { return nil })
	}
	if got, want := mux.Kinds(), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("Kinds() = %v, want %v", got, want)
	}
}

func TestMiddleware(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{5}, outbox.Options{})
	var trace []string // written by one job, read after it
	note := func(name string) dispatcher.Middleware {
		return func(next dispatcher.Handler) dispatcher.Handler {
			return func(ctx context.Context, job *outbox.Claimed) error {
				trace = append(trace, name+" in")
				err := next(context.WithValue(ctx, traceKey{}, name), job)
				trace = append(trace, fmt.Sprintf("%s out: %v", name, err))
				return err
			}
		}
	}
	mux := new(dispatcher.Mux)
	mux.Use(note("outer"))
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[probe]) error {
		trace = append(trace, fmt.Sprintf("job %d within %v", job.Args.N, ctx.Value(traceKey{})))
		return dispatcher.Discard(errBoom)
	})
	mux.Use(note("middle"), note("inner")) // also around what was registered before
	d := start(t, db, mux, quiet(nil))
	await(t, db, "the job is settled", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'failed'`)
	d.stop(t)
	wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=error")
	want := []string{"outer in", "middle in", "inner in", "job 5 within inner", "inner out: boom", "middle out: boom", "outer out: boom"}
	if diff := cmp.Diff(want, trace); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

type traceKey struct{}

func TestUndecodablePayloadFailsForGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, outbox.Raw{KindName: "probe", Payload: []byte(`{"n":"seven"}`)}, outbox.Options{})
	binary := enqueue(t, db, outbox.Raw{KindName: "probe", Payload: []byte{0, 0xff}, ContentType: "application/protobuf"}, outbox.Options{})
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		t.Error("the handler was called")
		return nil
	}), quiet(nil))
	await(t, db, "both are dead letters", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'failed'`)
	wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=undecodable_payload")
	wantState(t, db, binary, "failed attempt=1 epoch=2 lost=0 error=undecodable_payload")
}

func TestRawHandlerGetsTheBytesAsTheyWere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	payload := []byte{0, 0xff, 1, '\\'}
	enqueue(t, db, outbox.Raw{KindName: "bytes", Payload: payload, ContentType: "application/protobuf"}, outbox.Options{})
	got := make(chan *outbox.Claimed, 1)
	mux := new(dispatcher.Mux)
	mux.HandleRaw("bytes", func(_ context.Context, job *outbox.Claimed) error {
		got <- job
		return nil
	})
	start(t, db, mux, quiet(nil))
	if job := receive(t, got, "the job"); !slices.Equal(job.Payload, payload) || job.ContentType != "application/protobuf" {
		t.Errorf("got %x, %s", job.Payload, job.ContentType)
	}
	awaitSucceeded(t, db, 1)
}

func TestResultsAreStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	type receipt struct {
		Total int `json:"total"`
	}
	ids := enqueueProbes(t, db, 3, outbox.Options{})
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(_ context.Context, job *outbox.Job[returning[any]]) (any, error) {
		switch job.Args.N {
		case 0:
			return receipt{42}, nil
		case 1:
			return receipt{43}, errBoom // an error comes before the result
		default:
			return func() {}, nil // cannot be encoded, today or tomorrow
		}
	})
	start(t, db, mux, config)
	await(t, db, "all are settled", `SELECT count(*) = 1 AND (SELECT bool_and(epoch = 2) FROM outbox.jobs) FROM outbox.history`)
	if got := ask[string](t, db, `SELECT convert_from(result, 'UTF8') FROM outbox.history WHERE id = $1`, ids[0]); got != `{"total":42}` {
		t.Errorf("result = %s", got)
	}
	wantState(t, db, ids[1], "retrying attempt=1 epoch=2 lost=0 error=error")
	wantState(t, db, ids[2], "failed attempt=1 epoch=2 lost=0 error=error")
}
