package console_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// slowReader takes nothing of its answer before it goes on.
type slowReader struct {
	*httptest.ResponseRecorder
	began func()
	goOn  chan struct{}
}

func (s slowReader) Write(b []byte) (int, error) {
	s.began()
	<-s.goOn
	return s.ResponseRecorder.Write(b)
}

// One login asks for more files than there are places, and reads none of them: others still have their pages.
func TestASlowReaderTakesNotAllPlaces(t *testing.T) {
	t.Parallel()
	const most = 4
	r := newRig(t, func(c *console.Config) { c.MaxInFlight = most })
	r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	reading, goOn := make(chan struct{}, 2*most), make(chan struct{})
	slow, cookies := r.as("a+jobs.read"), r.as("a+jobs.read").cookies()
	var all sync.WaitGroup
	for range most {
		all.Go(func() {
			req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs-export?format=csv", nil)
			for _, c := range cookies {
				req.AddCookie(c)
			}
			w := slowReader{httptest.NewRecorder(), sync.OnceFunc(func() { reading <- struct{}{} }), goOn}
			slow.handler.ServeHTTP(w, req)
			reading <- struct{}{} // or refused
		})
	}
	for range most {
		<-reading
	}
	if got := r.as("b").get("jobs").Code; got != http.StatusOK {
		t.Errorf("somebody else gets %d, want their page", got)
	}
	close(goOn)
	all.Wait()
	r.as("a+jobs.read").get("jobs").is(200)
}
