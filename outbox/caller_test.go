package outbox

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestTheCallerGoesWithTheJobAndItsFollowUps(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	caller := Caller{Service: "shop", User: "ada", CorrelationID: "order-9"}
	for name, tt := range map[string]struct {
		options Options
		want    Caller
	}{
		"typed":            {Options{Caller: caller}, caller},
		"headers count":    {Options{Caller: caller, Headers: map[string]string{"caller-user": "grace", "a": "b"}}, Caller{"shop", "grace", "order-9"}},
		"in headers alone": {Options{Headers: map[string]string{"correlation-id": "c"}}, Caller{CorrelationID: "c"}},
		"nobody":           {Options{}, Caller{}},
	} {
		given := len(tt.options.Headers)
		id, err := Enqueue(t.Context(), db, Raw{KindName: "mail", Payload: []byte(`{}`)}, tt.options)
		if err != nil {
			t.Fatal(err)
		}
		if len(tt.options.Headers) != given {
			t.Errorf("%s: the caller's map was changed: %v", name, tt.options.Headers)
		}
		job := &Claimed{ID: id, Tenant: RootTenant}
		if err := db.QueryRow(t.Context(), `SELECT headers FROM outbox.jobs WHERE id = $1`, id).Scan(&job.RawHeaders); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, job.Caller()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for said, want := range map[Caller]Caller{{}: tt.want, {User: "eve"}: {User: "eve"}} {
			if _, err := job.Then(Raw{KindName: "next", Payload: []byte(`{}`)}, Options{Caller: said}); err != nil {
				t.Fatal(err)
			}
			next := &Claimed{}
			if text := last(engine.InternalOf(job).FollowUps.Rows()).Headers; text != nil {
				next.RawHeaders = []byte(*text)
			}
			if diff := cmp.Diff(want, next.Caller()); diff != "" {
				t.Errorf("%s, a follow-up of %+v (-want +got):\n%s", name, said, diff)
			}
		}
	}
	_, err := Enqueue(t.Context(), db, Raw{KindName: "mail", Payload: []byte(`{}`)}, Options{Caller: Caller{User: "a\x00"}})
	if err == nil || !strings.Contains(err.Error(), "Options.Caller") {
		t.Errorf("a NUL: %v", err)
	}
}

// picky refuses a payload.
type picky struct{}

func (picky) Check(kind string, payload Content) error {
	if string(payload.Bytes) == `{"ok":true}` && payload.Type == "application/json" && kind == "mail" {
		return nil
	}
	return invalid("Args/ok", "is missing")
}

// Whatever stores jobs checks them first, and stores none if one is refused.
func TestARefusedPayloadIsNotSent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	good, bad := Raw{KindName: "mail", Payload: []byte(`{"ok":true}`)}, Raw{KindName: "mail", Payload: []byte(`{}`)}
	opts := Options{Check: picky{}}
	for name, try := range map[string]func() error{
		"Enqueue": func() error { _, err := Enqueue(t.Context(), db, bad, opts); return err },
		"Submit":  func() error { _, err := Submit(t.Context(), db, bad, opts); return err },
		"EnqueueMany": func() error {
			_, err := EnqueueMany(t.Context(), db, []Request{{good, opts}, {bad, opts}})
			return err
		},
		"Then": func() error { _, err := (&Claimed{Tenant: RootTenant}).Then(bad, opts); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "Args/ok is missing") {
			t.Errorf("%s = %v, want it refused", name, err)
		}
	}
	var n int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d jobs are stored, %v", n, err)
	}
	if _, err := Enqueue(t.Context(), db, good, opts); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

func last[T any](all []T) T { return all[len(all)-1] }
