// Package apitest checks responses of the API against its description, both in the API's own tests and in those of
// other packages. A mismatch fails the test.
package apitest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/posthaste-dev/posthaste/api"
)

var contract = sync.OnceValues(func() (routers.Router, error) {
	text, err := api.OpenAPI()
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

const streams = "text/event-stream"

// problems are the problem responses that were already checked. A check takes longer than the request, and tests of
// refusals make thousands of the same kind: one of each kind, for each operation, is enough.
var problems sync.Map // by problem

type problem struct {
	operation *openapi3.Operation
	status    int
	code      string
	errors    bool
}

// Check fails the test unless the response to a request agrees with the API's description. Of a stream it checks the
// beginning.
func Check(t testing.TB, r *http.Request, status int, h http.Header, body []byte) {
	t.Helper()
	if h.Get("X-Request-Id") == "" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Content-Security-Policy") == "" {
		t.Errorf("%s %s: headers = %v, want those of every answer", r.Method, r.URL, h)
	}
	var p api.Problem
	if status >= 400 {
		if err := json.Unmarshal(body, &p); err != nil || h.Get("Content-Type") != "application/problem+json" ||
			p.Status != status || p.Code == "" || !isReference(p.Instance) || !strings.HasSuffix(p.Type, "#"+p.Code) ||
			p.RequestID != h.Get("X-Request-Id") {
			t.Errorf("%s %s: %d %s, want a problem: %v", r.Method, r.URL, status, body, err)
		}
	}
	router, err := contract()
	if err != nil {
		t.Error(err)
		return
	}
	route, params, err := router.FindRoute(r)
	if err != nil { // not a route: a problem is all that there can be
		if status < 400 && !isPage(r.URL.Path) {
			t.Errorf("%s %s: %d of what is no route: %v", r.Method, r.URL, status, err)
		}
		return
	}
	if status >= 400 {
		if _, again := problems.LoadOrStore(problem{route.Operation, status, p.Code, len(p.Errors) > 0}, true); again {
			return
		}
	}
	stream := status == http.StatusOK && h.Get("Content-Type") == streams
	if described := route.Operation.Responses.Value("200"); described != nil && status == http.StatusOK &&
		stream != (described.Value.Content[streams] != nil) {
		t.Errorf("%s %s: it is a %s, which openapi.json says otherwise", r.Method, r.URL, h.Get("Content-Type"))
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: route, PathParams: params},
		Status:                 status, Header: h, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: stream},
	})
	if err != nil {
		t.Errorf("%s %s: %d %s is not what openapi.json says: %v", r.Method, r.URL, status, body, err)
	}
}

func isReference(text string) bool {
	_, err := url.Parse(text)
	return err == nil
}

// isPage reports whether a path is one that the API serves besides its routes: its description, and pages that show it.
func isPage(path string) bool {
	return strings.HasPrefix(path, "/openapi") || strings.HasPrefix(path, "/docs")
}

// Checked returns a handler that serves the API and checks each response before it is sent; it checks a stream at its
// first bytes. It does not check the response to a request that the client has cancelled, which may be cut off
// anywhere.
func Checked(t testing.TB, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.Clone(r.Context())
		c := &checked{ResponseWriter: w, status: http.StatusOK, began: func(status int, h http.Header) {
			Check(t, asked, status, h, nil)
		}}
		handler.ServeHTTP(c, r)
		if !c.stream && r.Context().Err() == nil {
			Check(t, asked, c.status, w.Header(), c.body.Bytes())
		}
	})
}

// checked keeps what the handler writes.
type checked struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
	wrote  bool
	stream bool // or a page: its end is not awaited
	began  func(status int, h http.Header)
}

// Unwrap returns the ResponseWriter for http.ResponseController: streams flush and have deadlines.
func (c *checked) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *checked) WriteHeader(status int) {
	if !c.wrote && status >= http.StatusOK {
		c.wrote, c.status = true, status
		if c.stream = !strings.HasSuffix(c.Header().Get("Content-Type"), "json"); c.stream {
			c.began(status, c.Header())
		}
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *checked) Write(b []byte) (int, error) {
	if !c.wrote {
		c.WriteHeader(http.StatusOK)
	}
	if !c.stream {
		c.body.Write(b)
	}
	return c.ResponseWriter.Write(b)
}
