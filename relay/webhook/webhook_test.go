package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

func claimed() *outbox.Claimed {
	return &outbox.Claimed{
		ID: outbox.NewID(), Kind: "receipt.send", Attempt: 3, MaxAttempts: 25, Epoch: 7,
		ContentType: "application/json", Payload: []byte(`{"OrderID":7}`),
		RawHeaders: []byte(`{"traceparent":"00-a-b-01","Tracestate":"k=v","user":"ada","bad name":"x","evil":"a\r\nb: c","Authorization":"stolen"}`),
	}
}

// deliver sends a job to a server with the given handler.
func deliver(t *testing.T, ctx context.Context, job *outbox.Claimed, serve http.HandlerFunc) error {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return deliverTo(t, ctx, server.URL, job)
}

func deliverTo(t *testing.T, ctx context.Context, url string, job *outbox.Claimed) error {
	t.Helper()
	transport := newTransport()
	t.Cleanup(transport.CloseIdleConnections)
	handle, err := Handler(url, Config{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return handle(ctx, job)
}

func TestTheRequestCarriesTheJob(t *testing.T) {
	t.Parallel()
	job := claimed()
	var got http.Header
	var method, body string
	err := deliver(t, t.Context(), job, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, method, body = r.Header, r.Method, string(b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if method != "POST" || body != `{"OrderID":7}` {
		t.Errorf("got %s %s, want POST of the payload", method, body)
	}
	for _, name := range []string{"Accept-Encoding", "Content-Length"} {
		got.Del(name)
	}
	want := http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"posthaste"},
		"Posthaste-Job-Id": {job.ID.String()}, "Idempotency-Key": {job.ID.String()},
		"Posthaste-Kind": {"receipt.send"}, "Posthaste-Attempt": {"3"}, "Posthaste-Epoch": {"7"},
		"Posthaste-Header-User": {"ada"}, "Posthaste-Header-Authorization": {"stolen"},
		"Traceparent": {"00-a-b-01"}, "Tracestate": {"k=v"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// A receiver that ignores the case of names, or sees - as _, knows the caller of a job by one header: that of the API.
func TestTheCallersServiceHasOneHeader(t *testing.T) {
	t.Parallel()
	job := claimed()
	job.RawHeaders = []byte(`{"caller-service":"shop","Caller-Service":"billing","caller_service":"billing","CALLER.SERVICE":"billing",
		"caller-user":"ada","Caller-User":"eve"}`)
	for range 100 { // Go iterates over a map in a random order
		header := http.Header{}
		setHeaders(header, job)
		header = http.Header{"Service": header["Posthaste-Header-Caller-Service"], "User": header["Posthaste-Header-Caller-User"], "All": {strconv.Itoa(len(header))}}
		if diff := cmp.Diff(http.Header{"Service": {"shop"}, "User": {"ada"}, "All": {"8"}}, header); diff != "" {
			t.Fatalf("headers (-want +got):\n%s", diff)
		}
	}
}

func TestE6StatusDecides(t *testing.T) {
	t.Parallel()
	const (
		discard, retry          = "*outcome.Discarded", "*webhook.Error"
		retryAfter, unavailable = "*outcome.Postponed", "*outcome.Unavailable"
	)
	tests := map[string]struct {
		status int
		header string
		want   string
		code   string
	}{
		"200 succeeds":                        {status: 200},
		"204 succeeds":                        {status: 204},
		"101 is tried again":                  {status: 101, want: retry, code: "http_101"},
		"302 is tried again":                  {302, "", retry, "http_302"},
		"400 waits for a person":              {400, "", discard, "http_400"},
		"401 is tried again":                  {401, "", retry, "http_401"},
		"403 is tried again":                  {403, "", retry, "http_403"},
		"404 is tried again":                  {404, "", retry, "http_404"},
		"408 is tried again":                  {408, "", retry, "http_408"},
		"410 waits for a person":              {410, "", discard, "http_410"},
		"413 waits for a person":              {413, "", discard, "http_413"},
		"415 waits for a person":              {415, "", discard, "http_415"},
		"422 waits for a person":              {422, "", discard, "http_422"},
		"425 is tried again":                  {425, "", retry, "http_425"},
		"429 is tried again":                  {429, "", retry, "http_429"},
		"429 with Retry-After is obeyed":      {429, "7", retryAfter, "http_429"},
		"429 with Retry-After of nothing":     {429, "0", retryAfter, "http_429"},
		"429 with a Retry-After that is past": {429, "Wed, 21 Oct 2015 07:28:00 GMT", retryAfter, "http_429"},
		"500 is tried again":                  {500, "", retry, "http_500"},
		"500 with Retry-After is not obeyed":  {500, "7", retry, "http_500"},
		"503 with Retry-After is an outage":   {503, "7", unavailable, "http_503"},
		"503 is tried again":                  {503, "", retry, "http_503"},
		"502 with Retry-After is no outage":   {502, "7", retry, "http_502"},
		"503 with an odd Retry-After":         {503, "soon", retry, "http_503"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := deliver(t, t.Context(), claimed(), func(w http.ResponseWriter, r *http.Request) {
				if test.header != "" {
					w.Header().Set("Retry-After", test.header)
				}
				if test.status == 101 {
					upgrade(w)
					return
				}
				w.WriteHeader(test.status)
				if test.status != 204 {
					_, _ = io.WriteString(w, "the reason")
				}
			})
			if got := typeName(err); got != test.want {
				t.Fatalf("got %s (%v), want %s", got, err, test.want)
			}
			if err == nil {
				return
			}
			failed, ok := errors.AsType[*Error](err)
			if want := map[bool]string{false: "the reason"}[test.status == 101]; !ok || failed.Code() != test.code || failed.Body != want {
				t.Errorf("got %v, want code %s and the answer's body", err, test.code)
			}
		})
	}
}

func TestE6RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	defer other.Close()
	err := deliver(t, t.Context(), claimed(), func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if err == nil || followed.Load() {
		t.Errorf("got %v, followed %v, want an error and no request to the other server", err, followed.Load())
	}
}

func TestE6AHugeAnswerIsNotRead(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	chunk := []byte(strings.Repeat("x", 32<<10))
	err := deliver(t, t.Context(), claimed(), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		for range 4096 { // 128 MiB
			n, err := w.Write(chunk)
			if written.Add(int64(n)); err != nil {
				return
			}
		}
	})
	failed, ok := errors.AsType[*Error](err)
	if !ok || len(failed.Body) != maxQuoted {
		t.Errorf("got %.80v with %d bytes of the answer, want %d", err, len(failed.Body), maxQuoted)
	}
	if got := written.Load(); got > 64<<20 {
		t.Errorf("the server could write %d bytes, want it to be cut off early", got)
	}
}

// What a receiver says of when to come again is the least that a job waits, never
// less than the backoff's wait: else all attempts would be made within a second.
func TestE6ARetryAfterIsNoShorterThanThePolicysWait(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"0":                             3 * time.Second,
		"1":                             3 * time.Second,
		"600":                           10 * time.Minute,
		"Wed, 21 Oct 2015 07:28:00 GMT": 3 * time.Second,
		"99999999999999999999":          24 * time.Hour,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(429)
		}))
		t.Cleanup(server.Close)
		handle, err := Handler(server.URL, Config{})
		if err != nil {
			t.Fatal(err)
		}
		v := attempt(t, handle, dispatcher.Waits(3*time.Second))
		if v.Status != outbox.Retrying || v.Delay != want || v.Code != "http_429" {
			t.Errorf("429 with Retry-After %q: %+v, want another attempt after %s", header, v, want)
		}
	}
}

// An outage is paced, whatever is left of the date that the receiver names.
func TestAnOutageThatIsOverAtOnceWaitsAsLongAsItHasLasted(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 999e6, time.UTC)
	for header, want := range map[string]time.Duration{
		"0": 0, "Sat, 21 Nov 2026 12:00:01 GMT": 0, "Sat, 21 Nov 2026 11:00:00 GMT": 0, // 0 is that
		"Sat, 21 Nov 2026 12:00:02 GMT": 1001 * time.Millisecond, "2": 2 * time.Second,
	} {
		handle := func(context.Context, *outbox.Claimed) error {
			return judge("https://example.com", &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {header}}, Body: http.NoBody}, now)
		}
		v := attempt(t, handle, dispatcher.Waits(time.Hour))
		if v.OutageLimit == 0 || v.Wait != want {
			t.Errorf("503 with Retry-After %q: %+v, want an outage with a wait of %s", header, v, want)
		}
	}
}

// attempt returns what becomes of a job after one call of the handler.
func attempt(t *testing.T, handle dispatcher.Handler, retry dispatcher.BackoffPolicy) outcome.Outcome {
	job := claimed()
	o, _ := outcome.Policy{Backoff: retry}.Decide(job, handle(t.Context(), job), nil)
	return o
}

// upgrade answers 101 and leaves the connection open until the test is over.
func upgrade(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	_, _ = conn.Read(make([]byte, 1)) // until the other side hangs up
	conn.Close()
}

// The status is the answer: a body that never ends holds nobody.
func TestE6ABodyThatNeverEndsHoldsNobody(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"a success": 200, "a failure": 500} {
		for protocol, newServer := range map[string]func(http.Handler) *httptest.Server{"HTTP/1": httptest.NewServer, "HTTP/2": newHTTP2Server} {
			t.Run(name+" by "+protocol, func(t *testing.T) {
				hungUp := make(chan struct{})
				server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(hungUp)
					w.WriteHeader(status)
					for r.Context().Err() == nil {
						_, _ = io.WriteString(w, ".")
						_ = http.NewResponseController(w).Flush()
						time.Sleep(5 * time.Millisecond)
					}
				}))
				t.Cleanup(server.Close)
				u, err := Parse(server.URL)
				if err != nil {
					t.Fatal(err)
				}
				h := &hook{target: u, client: server.Client(), bodyTime: 50 * time.Millisecond}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the attempt's
				defer cancel()
				err = h.deliver(ctx, claimed())
				if ctx.Err() != nil {
					t.Fatal("it took until the attempt's time was over")
				}
				failed, isFailure := errors.AsType[*Error](err)
				if isFailure != (status == 500) || isFailure && (failed.Code() != "http_500" || !strings.HasPrefix(failed.Body, ".")) {
					t.Errorf("got %v, want what the status %d says", err, status)
				}
				select {
				case <-hungUp:
				case <-time.After(20 * time.Second):
					t.Error("the receiver still has the request")
				}
			})
		}
	}
}

func newHTTP2Server(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	return s
}

func TestE6TheContextBoundsTheRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	defer close(release)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	err := deliverTo(t, ctx, server.URL, claimed())
	if failed, ok := errors.AsType[*Error](err); !ok || failed.Code() != "http_timeout" {
		t.Errorf("got %v, want code http_timeout", err)
	}
}

func TestE6NobodyThereIsTriedAgainAndTellsNoSecrets(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	err = deliverTo(t, t.Context(), "http://ada:hush@"+nobody.Addr().String()+"/secret-path?token=hidden", claimed())
	failed, ok := errors.AsType[*Error](err)
	if !ok || failed.Code() != "http_unreachable" {
		t.Fatalf("got %v, want code http_unreachable", err)
	}
	if got := typeName(err); got != "*outcome.Unavailable" {
		t.Errorf("a refused connection is a %s, want an outage", got)
	}
	for _, secret := range []string{"ada", "hush", "secret-path", "hidden"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("got %q, want no %q in it", err, secret)
		}
	}
}

// What is no outage spends attempts: it may be the job's own doing.
func TestE6SilenceIsNotAlwaysAnOutage(t *testing.T) {
	t.Parallel()
	for name, deliver := range map[string]func(t *testing.T) error{
		"a connection that breaks": func(t *testing.T) error {
			return deliver(t, t.Context(), claimed(), func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					conn.Close()
				}
			})
		},
		"a proxy that does not exist": func(t *testing.T) error {
			return judgeSilence(&Error{Err: &net.OpError{Op: "proxyconnect", Err: &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}}})
		},
		"a proxy that breaks off": func(t *testing.T) error {
			return judgeSilence(&Error{Err: &net.OpError{Op: "proxyconnect", Err: io.EOF}})
		},
		"a host that does not exist": func(t *testing.T) error {
			return judgeSilence(&Error{Err: &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}})
		},
		"a receiver that does not speak TLS": func(t *testing.T) error {
			server := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(server.Close)
			return deliverTo(t, t.Context(), strings.Replace(server.URL, "http:", "https:", 1), claimed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := deliver(t)
			if got := typeName(err); got != "*webhook.Error" {
				t.Errorf("got %s (%v), want an ordinary failure", got, err)
			}
		})
	}
}

// A proxy where nobody listens would have met any other job alike.
func TestAProxyThatIsAwayIsAnOutage(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	for _, scheme := range []string{"http", "https"} {
		transport := newTransport()
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: nobody.Addr().String()})
		handle, err := Handler(scheme+"://example.com", Config{Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		if got := typeName(handle(t.Context(), claimed())); got != "*outcome.Unavailable" {
			t.Errorf("%s by a proxy that is away is a %s, want an outage", scheme, got)
		}
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("y", 10_000))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	transport := newTransport()
	defer transport.CloseIdleConnections()
	handle, err := Handler(server.URL, Config{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := handle(t.Context(), claimed()); err != nil {
			t.Fatal(err)
		}
	}
	if got := opened.Load(); got != 1 {
		t.Errorf("got %d connections for 20 jobs, want 1", got)
	}
}

func TestBadURLsAreRefusedWithoutQuotingThem(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]string{
		"no scheme":    "example.com/secret",
		"other scheme": "ftp://u:secret@example.com",
		"no host":      "http:///secret",
		"not a URL":    "http://u:secret@exa mple.com/%zz",
		"empty":        "",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Handler(target, Config{})
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error that does not quote the URL", err)
			}
		})
	}
}

func TestRetryAfterIsSecondsOrADateWithinADay(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, "999999999": 24 * time.Hour, "": -1, "-1": -1, "soon": -1,
		"Sat, 21 Nov 2026 12:00:30 GMT": 30 * time.Second,
		"Fri, 20 Nov 2026 12:00:30 GMT": 0,
	} {
		got, ok := backoff.RetryAfter(value, now, maxRetryAfter)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("RetryAfter(%q) is %s, want %s", value, got, want)
		}
	}
}

// typeName returns the name of an error's type, by which the tests know the dispatcher's unexported outcomes; "" for
// nil.
func typeName(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("%T", err)
}
