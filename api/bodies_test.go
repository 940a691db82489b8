package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	ada = access.Principal{Name: "ada", Tenant: outbox.RootTenant}
	bob = access.Principal{Name: "bob", Tenant: outbox.RootTenant}
	cyd = access.Principal{Name: "ada", Tenant: outbox.ID{2}}
)

// taking takes n bytes, and returns the code of the problem if there is no room.
func (r *room) taking(t *testing.T, n int64) string {
	t.Helper()
	p, _ := errors.AsType[*Problem](r.take(t.Context(), n))
	if p == nil {
		return ""
	}
	if p.retryAfter == 0 {
		t.Error("it does not say when to ask again")
	}
	return p.Code
}

func TestNobodysBodiesTakeAllOfTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBodies(64, 1, 2)
		var rooms []*room
		take := func(who access.Principal, n int64, want string) {
			t.Helper()
			rooms = append(rooms, b.room(who))
			if got := rooms[len(rooms)-1].taking(t, n); got != want {
				t.Errorf("%d bytes of %s: %q, want %q", n, who.Name, got, want)
			}
		}
		take(ada, 16, "")
		take(ada, 16, "")
		take(ada, 1, "rate_limited") // half
		take(bob, 16, "")
		take(cyd, 2, "overloaded") // three quarters are taken by what is large
		take(bob, 1, "overloaded") // half of what ada leaves
		for range 8 {
			take(cyd, 1, "")
		}
		take(cyd, 1, "overloaded")
		for _, r := range rooms {
			r.release()
			r.release()
		}
		if b.taken != 0 || b.takenBig != 0 || len(b.takenBy) != 0 {
			t.Errorf("after all: %d, %d and %v are taken", b.taken, b.takenBig, b.takenBy)
		}
	})
}

func TestABodyWaitsForRoomALittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBodies(64, 64, 2)
		first, second := b.room(ada), b.room(bob)
		if first.taking(t, 32)+second.taking(t, 16) != "" {
			t.Fatal("there is no room at the beginning")
		}
		began := time.Now()
		if got := b.room(cyd).taking(t, 9); got != "overloaded" || time.Since(began) != queueWait {
			t.Errorf("in vain: %q after %s, want it refused after %s", got, time.Since(began), queueWait)
		}
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 4)
		for range 2 { // as many as may wait
			go func() { results <- b.room(cyd).take(ctx, 12) }()
		}
		synctest.Wait()
		began = time.Now()
		if got := b.room(cyd).taking(t, 12); got != "overloaded" || time.Since(began) != 0 {
			t.Errorf("when enough wait: %q after %s, want it refused at once", got, time.Since(began))
		}
		first.shrinkTo(24) // it was not so long
		if err := <-results; err != nil {
			t.Errorf("room for one: %v", err)
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("who has gone: %v", err)
		}
		if got := b.taken; got != 52 || len(b.queue) != 0 {
			t.Errorf("%d bytes are taken and %d wait, want 52 and none", got, len(b.queue))
		}
	})
}

// unsized is a body that does not say how long it is.
type unsized struct{ io.Reader }

func TestABodyTakesWhatItIsLong(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for name, c := range map[string]struct {
		length   int
		declared bool
		taken    func(int64) bool
		err      bool
	}{
		"nothing":                    {0, true, func(n int64) bool { return n == 0 }, false},
		"small":                      {smallBody, true, func(n int64) bool { return n == 0 }, false},
		"declared":                   {100_000, true, func(n int64) bool { return n == 100_000 }, false},
		"as much as may be":          {limit, true, func(n int64) bool { return n == limit }, false},
		"too much":                   {limit + 1, true, func(n int64) bool { return n == 0 }, true},
		"small, not declared":        {smallBody - 1, false, func(n int64) bool { return n == 0 }, false},
		"not declared":               {100_000, false, func(n int64) bool { return n >= 100_000 && n <= 200_000 }, false},
		"as much, not declared":      {limit, false, func(n int64) bool { return n <= limit+1 && n >= limit }, false},
		"some more, not declared":    {limit/growth + 1, false, func(n int64) bool { return n == limit+1 }, false},
		"too much, not declared":     {limit + 1, false, func(n int64) bool { return n == limit+limit/growth }, true},
		"as much as is not counted":  {smallBody, false, func(n int64) bool { return n == 0 }, false},
		"a little more than a bit":   {smallBody + 1, false, func(n int64) bool { return n >= smallBody && n <= 3*smallBody }, false},
		"a little more and declared": {smallBody + 1, true, func(n int64) bool { return n == smallBody+1 }, false},
	} {
		text := strings.Repeat("x", c.length)
		req := httptest.NewRequest("POST", "/jobs", strings.NewReader(text))
		if !c.declared {
			req = httptest.NewRequest("POST", "/jobs", unsized{strings.NewReader(text)})
		}
		b := newBodies(4*limit, limit, 1)
		room := b.room(ada)
		data, err := room.read(httptest.NewRecorder(), req, limit)
		if (err != nil) != c.err || err == nil && string(data) != text {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
		if err != nil && bodyProblem(err, limit).Code != "body_too_large" {
			t.Errorf("%s: %v", name, err)
		}
		if !c.taken(b.taken) {
			t.Errorf("%s: %d bytes are taken of %d", name, b.taken, c.length)
		}
		if room.release(); b.taken != 0 {
			t.Errorf("%s: %d bytes are kept", name, b.taken)
		}
	}
}

// A body that fills the admission when it has been read, so that its request is refused.
type crowding struct {
	io.Reader
	admission *admission
}

func (c crowding) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil {
		c.admission.working.taken, c.admission.waiting.taken = 1, 1 // by another
	}
	return n, err
}

type known access.Principal

func (k known) Authenticate(context.Context, string) (access.Principal, error) {
	return access.Principal(k), nil
}

// It is not parallel: it looks at the memory of the process.
func TestARefusalThatIsHeldBackKeepsNoBody(t *testing.T) {
	const size = 12 << 20
	who := ada
	who.Capabilities = map[access.Capability]bool{access.JobsEnqueue: true}
	config := Config{Authenticator: known(who)}.withDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := &server{config: config, log: config.Logger, metrics: newMetrics(nil), admission: newAdmission(1, 1), answers: newQuota("requests under way", 1, 8, 2), bodies: newBodies(64<<20, 1<<20, 1)}
		mux := http.NewServeMux()
		if _, err := s.register(mux, routes); err != nil {
			t.Fatal(err)
		}
		handler := s.outermost(mux)
		inUse := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := inUse()
		answered := make(chan *httptest.ResponseRecorder)
		go func() {
			w := httptest.NewRecorder()
			req := httptest.NewRequest("POST", "/jobs/batch", crowding{io.LimitReader(endless{}, size), s.admission})
			req.Header.Set("Content-Type", ndjson)
			req.Header.Set("Authorization", "Bearer ada")
			handler.ServeHTTP(w, req)
			answered <- w
		}()
		time.Sleep(refusalWait / 4)
		if len(s.admission.refusals) != 1 {
			t.Fatal("no refusal is held back: this test looks at the wrong moment")
		}
		s.bodies.mu.Lock()
		taken := s.bodies.taken
		s.bodies.mu.Unlock()
		if taken != 0 {
			t.Errorf("its body still takes %d bytes of what there is for bodies", taken)
		}
		if now := inUse(); now > before+size/2 {
			t.Errorf("its body is still in memory: %d bytes more", now-before)
		}
		if w := <-answered; w.Code != http.StatusTooManyRequests {
			t.Errorf("answer = %d %s", w.Code, w.Body)
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}
