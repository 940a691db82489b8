package client_test

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/outbox"
)

// patience is for whatever comes in a moment on a machine with nothing else to do.
const patience = time.Minute

func TestEventsOfJobsAreThoseOfTheAPI(t *testing.T) {
	ours, theirs := reflect.TypeFor[client.JobChange](), reflect.TypeFor[api.JobChange]()
	if ours.NumField() != theirs.NumField() {
		t.Errorf("%d fields, the API has %d", ours.NumField(), theirs.NumField())
	}
	for i := range min(ours.NumField(), theirs.NumField()) {
		if a, b := ours.Field(i), theirs.Field(i); a.Name != b.Name || a.Tag.Get("json") != b.Tag.Get("json") || a.Type.Kind() != b.Type.Kind() {
			t.Errorf("field %s %q, the API has %s %q", a.Name, a.Tag, b.Name, b.Tag)
		}
	}
}

// cutting ends each connection of a stream after so many writes, the last of which does
// not arrive.
type cutting struct {
	http.ResponseWriter
	writes int
	cut    func()
}

func (c *cutting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutting) Write(text []byte) (int, error) {
	if c.writes--; c.writes < 0 {
		c.cut()
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(text)
}

// Connections break all the time, and lose what was just being sent. The change of
// each job arrives nevertheless, those of the time without a connection included.
func TestNoEventIsLostWithItsConnection(t *testing.T) {
	t.Parallel()
	var (
		connections atomic.Int32
		mu          sync.Mutex
		missing     = map[string]bool{}
		enqueue     func()
	)
	c := servedBy(t, client.Config{Token: secret, MaxWait: 100 * time.Millisecond}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/changes" && connections.Add(1) <= 4 {
				w = &cutting{w, 2, func() { enqueue() }} // which nobody listens to
			}
			next.ServeHTTP(w, r)
		})
	})
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	enqueue = func() {
		mu.Lock()
		defer mu.Unlock()
		stored, err := c.EnqueueBatch(ctx, []client.NewJob{{Kind: "mail"}, {Kind: "mail"}})
		if err != nil {
			t.Error(err)
		}
		for _, s := range stored {
			missing[s.ID] = true
		}
	}
	received := func(id string) (all bool) {
		mu.Lock()
		defer mu.Unlock()
		delete(missing, id)
		return len(missing) == 0
	}
	for e, err := range c.Changes(ctx, client.ChangeFilter{}, "") {
		if err != nil {
			t.Fatalf("%d jobs were not told in %d connections: %v", len(missing), connections.Load(), err)
		}
		if e.Name == client.ChangeResync {
			t.Error("the client lost its place")
		}
		if e.Name == client.ChangeJob && (e.Job.Tenant != outbox.RootTenant.String() || e.Job.Status != "pending") {
			t.Errorf("got %+v", e.Job)
		}
		switch all := received(e.Job.ID); {
		case all && connections.Load() > 4:
			return
		case all:
			enqueue()
		}
	}
}

func TestAJobIsFollowedUntilItHasClosed(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	c := servedBy(t, client.Config{Token: secret, MaxWait: 100 * time.Millisecond}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") == "text/event-stream, application/problem+json" && connections.Add(1) == 1 {
				w = &cutting{w, 2, func() {}} // its beginning, and the first state
			}
			next.ServeHTTP(w, r)
		})
	})
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	job, err := c.Enqueue(ctx, client.NewJob{Kind: "mail"})
	if err != nil {
		t.Fatal(err)
	}
	states := ""
	for now, err := range c.JobChanges(ctx, job.ID) {
		if err != nil {
			t.Fatalf("after %q: %v", states, err)
		}
		if states == "" {
			if _, err := c.CancelJob(ctx, job.ID); err != nil {
				t.Fatal(err)
			}
		}
		states += now.Status + " "
	}
	if states != "pending cancelled " || connections.Load() < 2 {
		t.Errorf("got %q over %d connections", states, connections.Load())
	}
	for _, err := range c.JobChanges(ctx, outbox.NewID().String()) {
		if problem(t, err).Code != client.CodeJobNotFound {
			t.Errorf("got %v", err)
		}
	}
	for _, err := range c.JobChanges(ctx, "..") {
		if err == nil {
			t.Error("an id that is none was taken")
		}
	}
	// A context's end is yielded last.
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	var last error
	for _, err := range c.Changes(ctx, client.ChangeFilter{}, "") {
		last = err
		stop()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("got %v, want the context's end", last)
	}
}
