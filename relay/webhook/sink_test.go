package webhook

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/relay"
)

// open opens a sink to a server of the test.
func open(t *testing.T, config SinkConfig) *Sink {
	t.Helper()
	if config.Allow == nil {
		config.Allow = loopback
	}
	s, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func messages(n int, key func(i int) string) []relay.Message {
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = relay.Message{ID: fmt.Sprintf("m%d", i), Destination: "/", Body: []byte("{}")}
		if key != nil {
			all[i].Key = key(i)
		}
	}
	return all
}

func word(err error) string {
	if err == nil {
		return "stored"
	}
	if errors.Is(err, relay.ErrNotTried) {
		return "not tried"
	}
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok {
		return "refused " + refused.Code
	}
	if unavailable, ok := errors.AsType[*relay.UnavailableError](err); ok {
		return "unavailable " + unavailable.Code
	}
	return "unknown"
}

func words(errs []error) map[string]int {
	all := map[string]int{}
	for _, err := range errs {
		all[word(err)]++
	}
	return all
}

func TestWhatAnAnswerSaysOfAMessage(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "stored", 202: "stored", 204: "stored", 299: "stored",
		301: "unavailable relay_no_destination", 307: "unavailable relay_no_destination",
		400: "refused relay_refused", 401: "unavailable relay_forbidden", 403: "refused relay_forbidden",
		404: "unavailable relay_no_destination", 405: "unavailable relay_no_destination",
		408: "unknown", 409: "refused relay_refused", 410: "unavailable relay_no_destination", 413: "refused relay_too_large",
		414: "refused relay_bad_destination", 415: "refused relay_refused", 422: "refused relay_refused", 425: "unknown",
		402: "refused relay_refused", 451: "refused relay_refused", 429: "unavailable relay_full", 431: "refused relay_too_large",
		407: "unavailable relay_forbidden", 421: "unknown", 423: "unknown",
		500: "unknown", 502: "unknown", 503: "unavailable relay_unavailable", 504: "unknown", 507: "unavailable relay_full",
	} {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			if status != 204 {
				_, _ = io.WriteString(w, "the reason")
			}
		})
		err := open(t, SinkConfig{URL: url}).Publish(t.Context(), messages(1, nil))[0]
		if got := word(err); got != want {
			t.Errorf("%d is %s (%v), want %s", status, got, err, want)
		}
		if failed, ok := errors.AsType[*Error](err); err != nil && (!ok || failed.Status != status || failed.Body != "the reason") {
			t.Errorf("%d: the answer is lost: %v", status, err)
		}
	}
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusConflict)
	})
	if got := word(open(t, SinkConfig{URL: url}).Publish(t.Context(), messages(1, nil))[0]); got != "unknown" {
		t.Errorf("409 with Retry-After is %s, want unknown", got)
	}
}

// A message is stored if the receiver has said so, and in no other case.
func TestNoAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"a connection that breaks": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
		"half of an answer": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200")
				_ = conn.Close()
			}
		},
		"garbage": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "\x00\x01 200 OK\r\n\r\n")
				_ = conn.Close()
			}
		},
		"an answer to come": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 102 Processing\r\n\r\n")
				_ = conn.Close()
			}
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, SinkConfig{URL: serve(t, handler), Timeout: 200 * time.Millisecond})
			errs := s.Publish(t.Context(), messages(3, func(int) string { return "k" }))
			if got := words(errs); !cmp.Equal(got, map[string]int{"unknown": 1, "not tried": 2}) {
				t.Errorf("%v: %v", got, errs[0])
			}
		})
	}
}

func TestASinkFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	other := serve(t, func(http.ResponseWriter, *http.Request) { followed.Store(true) })
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusTemporaryRedirect) })
	err := open(t, SinkConfig{URL: url}).Publish(t.Context(), messages(1, nil))[0]
	if word(err) != "unavailable relay_no_destination" || followed.Load() || !strings.Contains(fmt.Sprint(err), "redirects are not followed") {
		t.Errorf("got %v, followed %t", err, followed.Load())
	}
}

func TestOnlyPublicAddressesAreConnectedTo(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"93.184.216.34": true, "8.8.8.8": true, "172.32.0.1": true, "2606:4700::1111": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "0.0.0.0": false, "::": false,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "100.64.0.1": false, "100.100.100.200": false,
		"169.254.169.254": false, "168.63.129.16": false, "192.0.0.192": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:8.8.8.8": true, "64:ff9b::7f00:1": false, "2002:7f00:1::": false,
		"224.0.0.1": false, "255.255.255.255": false, "ff02::1": false, "::127.0.0.1": false,
	} {
		d := &dialer{}
		err := d.control("tcp", net.JoinHostPort(address, "80"), nil)
		if refused, ok := errors.AsType[*addressError](err); (err == nil) != want || err != nil && (!ok || refused == nil) {
			t.Errorf("%s: %v, public %t", address, err, want)
		}
		d.allow = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		if err := d.control("tcp", net.JoinHostPort(address, "80"), nil); err != nil {
			t.Errorf("%s, which is allowed: %v", address, err)
		}
	}
}

// The name is public; where it leads is not.
func TestANameThatLeadsToUsIsNotConnectedTo(t *testing.T) {
	t.Parallel()
	var asked atomic.Bool
	url := serve(t, func(http.ResponseWriter, *http.Request) { asked.Store(true) })
	url = strings.Replace(url, "127.0.0.1", "localhost", 1)
	s := open(t, SinkConfig{URL: url, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	errs := s.Publish(t.Context(), messages(3, nil))
	if got := words(errs); !cmp.Equal(got, map[string]int{"unavailable relay_forbidden": 1, "not tried": 2}) || asked.Load() {
		t.Errorf("%v, asked %t: %v", got, asked.Load(), errs[0])
	}
	if err := open(t, SinkConfig{URL: url, Allow: []netip.Prefix{}}).Probe(t.Context()); word(err) != "unavailable relay_forbidden" {
		t.Errorf("Probe: %v", err)
	}
	if got := word(open(t, SinkConfig{URL: url, Allow: append(loopback, netip.MustParsePrefix("::1/128"))}).Publish(t.Context(), messages(1, nil))[0]); got != "stored" {
		t.Errorf("with loopback allowed: %s", got)
	}
}

func TestDestinationsKeepTheHost(t *testing.T) {
	t.Parallel()
	for destination, want := range map[string]string{
		"/":                                 "https://hooks.example.com/in?token=t",
		"orders/paid":                       "https://hooks.example.com/in/orders/paid?token=t",
		"/orders/paid?a=b":                  "https://hooks.example.com/in/orders/paid?token=t&a=b",
		"a%2Fb":                             "https://hooks.example.com/in/a%2Fb?token=t",
		"order:paid":                        "https://hooks.example.com/in/order:paid?token=t",
		"//evil.example.com/x":              "https://hooks.example.com/in/evil.example.com/x?token=t",
		"@evil.example.com":                 "https://hooks.example.com/in/@evil.example.com?token=t",
		"https://hooks.example.com/x":       "https://hooks.example.com/x",
		"https://other.example.com:8443/x":  "https://other.example.com:8443/x",
		"https://other.example.com/x":       "",
		"http://hooks.example.com/x":        "",
		"https://evil.example.com/x":        "",
		"https://hooks.example.com@evil/x":  "",
		"https://u:p@hooks.example.com/x":   "",
		"https://hooks.example.com.evil/x":  "",
		"https://hooks.example.com\\@evil/": "",
		"../admin":                          "",
		"a/../../admin":                     "",
		"a/%2e%2e/admin":                    "",
		"a/./b":                             "",
		"a/..;b/admin":                      "",
		"a;b/c":                             "https://hooks.example.com/in/a;b/c?token=t",
		"a\\b":                              "",
		"a\nb":                              "",
		"a%00b":                             "",
		"a#b":                               "",
		"100%":                              "",
	} {
		config := SinkConfig{URL: "https://hooks.example.com/in?token=t", Hosts: []string{"other.example.com:8443"}}
		s := open(t, config)
		u, err := config.target(s.base, destination)
		got := ""
		if err == nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("%q leads to %q (%v), want %q", destination, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q: the error has credentials in it: %v", destination, err)
		}
	}
}

func TestTwoKeysSignWhileTheyChange(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body []byte
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		got = r.Header
	})
	file := filepath.Join(t.TempDir(), "secrets")
	s := open(t, SinkConfig{URL: url, Signing: Signing{File: file}})
	if err := s.Publish(t.Context(), messages(1, nil))[0]; word(err) != "unavailable relay_unavailable" {
		t.Errorf("without its file: %v", err)
	}
	for content, want := range map[string][]string{
		oldSecret:                        {oldSecret},
		secret + "\n" + oldSecret + "\n": {secret, oldSecret},
		secret + "\n":                    {secret},
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Publish(t.Context(), messages(1, nil))[0]; err != nil {
			t.Fatal(err)
		}
		for _, one := range []string{secret, oldSecret} {
			key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, secretPrefix))
			if fault := verify(key, got, body); (fault == "") != slices.Contains(want, one) {
				t.Errorf("with %d secrets: %q, signed %q", len(want), fault, got.Get("webhook-signature"))
			}
		}
		if age := time.Since(time.Unix(0, 0)).Seconds() - mustFloat(got.Get("webhook-timestamp")); age < 0 || age > 60 {
			t.Errorf("the timestamp is %s", got.Get("webhook-timestamp"))
		}
	}
}

func mustFloat(text string) (n float64) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

// The vector is that of the specification's own libraries.
func TestTheSignatureIsThatOfStandardWebhooks(t *testing.T) {
	t.Parallel()
	keys, err := Signing{Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}.keys()
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	sign(header, keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got, want := header.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("the signature is %s, want %s", got, want)
	}
}

func TestJobsAreSignedAlike(t *testing.T) {
	t.Parallel()
	var fault string
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(oldSecret, secretPrefix))
		if fault = verify(key, r.Header, body); r.Header.Get("Webhook-Id") != r.Header.Get("Posthaste-Job-Id") {
			fault = "the id is another"
		}
	})
	handle, err := Handler(url, Config{Signing: Signing{Secrets: []string{secret, oldSecret}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := handle(t.Context(), claimed()); err != nil || fault != "" {
		t.Errorf("%v, %s", err, fault)
	}
	if _, err := Handler(url, Config{Signing: Signing{Secrets: []string{"whsec_short"}}}); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a secret that is none: %v", err)
	}
}

func TestKeysAreInOrderAndTogether(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var underWay, most int
	last, of := map[string]string{}, map[string]int{}
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		key, id := r.Header.Get("Posthaste-Header-Key"), r.Header.Get("Idempotency-Key")
		mu.Lock()
		underWay++
		of[key]++
		most = max(most, underWay)
		if of[key] > 1 || len(id) < len(last[key]) || len(id) == len(last[key]) && id < last[key] {
			t.Errorf("%s of %s is sent after %s, %d at once", id, key, last[key], of[key])
		}
		last[key] = id
		mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		underWay--
		of[key]--
	})
	s := open(t, SinkConfig{URL: url, Concurrency: 8})
	all := messages(400, func(i int) string { return fmt.Sprint("k", i%20) })
	for i := range all {
		all[i].Headers = []relay.Header{{Name: "key", Value: all[i].Key}}
	}
	if got := words(s.Publish(t.Context(), all)); got["stored"] != len(all) {
		t.Errorf("%v", got)
	}
	if most < 6 || most > 8 {
		t.Errorf("at most %d requests were under way, want 8", most)
	}
}

// One receiver that is away does not keep messages from the others, and is not asked again for a while.
func TestEachHostHasItsCircuit(t *testing.T) {
	t.Parallel()
	var asked, others atomic.Int32
	var away atomic.Bool
	away.Store(true)
	bad := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if away.Load() {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	good := serve(t, func(http.ResponseWriter, *http.Request) { others.Add(1) })
	s := open(t, SinkConfig{URL: bad, Hosts: []string{strings.TrimPrefix(good, "http://")}})
	all := messages(100, nil)
	for i := range all {
		if i%2 == 1 {
			all[i].Destination = good + "/"
		}
	}
	for range 3 {
		got := words(s.Publish(t.Context(), all))
		if want := map[string]int{"stored": 50, "unavailable relay_unavailable": 1, "not tried": 49}; !cmp.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if asked.Load() != 1 || others.Load() != 150 {
		t.Errorf("the one that is away was asked %d times, want 1, the other %d, want 150", asked.Load(), others.Load())
	}
	if err := s.Probe(t.Context()); word(err) != "unavailable relay_unavailable" {
		t.Errorf("Probe while it waits: %v", err)
	}
	away.Store(false)
	for deadline := time.Now().Add(10 * time.Second); s.Probe(t.Context()) != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
	}
	if got := words(s.Publish(t.Context(), all)); got["stored"] != len(all) {
		t.Errorf("when it is back: %v", got)
	}
}

// Trials of destinations that do not answer leave the circuit of their host as it is: others of the host do answer.
func TestATrialOfASilentDestinationOpensNoCircuit(t *testing.T) {
	t.Parallel()
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/silent") {
			_, _ = io.Copy(io.Discard, r.Body) // until then the server does not notice the end of the request
			<-r.Context().Done()
		}
	})
	s := open(t, SinkConfig{URL: url, Timeout: 100 * time.Millisecond})
	for range 3 {
		trial := messages(1, nil)
		trial[0].Destination, trial[0].Trial = "silent", true
		if got := word(s.Publish(t.Context(), trial)[0]); got != "unknown" {
			t.Errorf("a trial: %s, want unknown", got)
		}
	}
	if err := s.Probe(t.Context()); err != nil {
		t.Errorf("Probe after three trials: %v", err)
	}
	if got := word(s.Publish(t.Context(), messages(1, nil))[0]); got != "stored" {
		t.Errorf("another message: %s, want stored", got)
	}
}

// What a receiver asks for by mistake does not stop a sink for long.
func TestAReceiverIsTriedAfterAMinute(t *testing.T) {
	t.Parallel()
	var h host
	now := time.Now()
	h.fell(now, errors.New("429"), 24*time.Hour)
	if h.refusal(now.Add(59*time.Second)) == nil || h.refusal(now.Add(time.Minute)) != nil || h.most(10) != 1 {
		t.Errorf("it is tried at %s, by %d requests at a time", h.until.Sub(now), h.most(10))
	}
}

// What does not fit into the time of a batch is left for the next one, and nothing of it is broken off.
func TestABatchEndsBeforeItsTime(t *testing.T) {
	t.Parallel()
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		time.Sleep(50 * time.Millisecond)
	})
	s := open(t, SinkConfig{URL: url, Concurrency: 2, Timeout: 400 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	got := words(s.Publish(ctx, messages(1000, nil)))
	if got["stored"] < 5 || got["not tried"] == 0 || got["stored"]+got["not tried"] != 1000 || ctx.Err() != nil {
		t.Errorf("%v, %v", got, ctx.Err())
	}
}

func TestCertificatesOfOthersAreNotTrusted(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		url, ca string
		want    string
	}{
		"trusted":             {server.URL, ca, "stored"},
		"of nobody known":     {server.URL, "", "unavailable relay_forbidden"},
		"of another host":     {strings.Replace(server.URL, "127.0.0.1", "localhost", 1), ca, "unavailable relay_forbidden"},
		"no file to trust":    {server.URL, ca + ".none", "unavailable relay_unavailable"},
		"a server without it": {"https" + strings.TrimPrefix(serve(t, func(http.ResponseWriter, *http.Request) {}), "http"), ca, "unavailable relay_unavailable"},
	} {
		err := open(t, SinkConfig{URL: c.url, CAFile: c.ca, Allow: append(loopback, netip.MustParsePrefix("::1/128"))}).Publish(t.Context(), messages(1, nil))[0]
		if word(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	server2 := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server2.TLS = &tls.Config{NextProtos: []string{"h2"}}
	server2.EnableHTTP2 = true
	server2.StartTLS()
	t.Cleanup(server2.Close)
	if err := open(t, SinkConfig{URL: server2.URL, CAFile: ca}).Publish(t.Context(), messages(50, nil)); words(err)["stored"] != 50 {
		t.Errorf("by HTTP/2: %v", err)
	}
}

// A receiver that is replaced, and whose connections nobody ends, costs some seconds, and not as long as the system
// tries to reach it.
func TestAConnectionThatIsDeadIsGivenUp(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("got a request by %s", r.Proto)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	line := &frozen{to: server.Listener.Addr().String()}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, SinkConfig{URL: "https://" + line.listen(t), CAFile: ca, Timeout: 500 * time.Millisecond})
	s.transport.HTTP2.SendPingTimeout /= 5
	s.transport.HTTP2.PingTimeout /= 5
	if err := s.Publish(t.Context(), messages(1, nil))[0]; err != nil {
		t.Fatal(err)
	}
	line.freeze()
	if err := s.Publish(t.Context(), messages(1, nil))[0]; word(err) != "unknown" {
		t.Fatalf("over a dead connection: %v", err)
	}
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = s.Publish(t.Context(), messages(1, nil))[0]; err == nil {
			return
		}
	}
	t.Errorf("after 30 s: %v", err)
}

// frozen passes connections on. Those that there are when it freezes stay open, and nothing passes.
type frozen struct {
	to  string
	mu  sync.Mutex
	all []*atomic.Bool
}

func (f *frozen) listen(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", f.to)
			if err != nil {
				_ = from.Close()
				continue
			}
			is := new(atomic.Bool)
			f.mu.Lock()
			f.all = append(f.all, is)
			f.mu.Unlock()
			go pass(to, from, is)
			go pass(from, to, is)
		}
	}()
	return listener.Addr().String()
}

func (f *frozen) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, is := range f.all {
		is.Store(true)
	}
}

func pass(to, from net.Conn, frozen *atomic.Bool) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if frozen.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestTheSinksConfigReportsEveryMistakeAndNoSecret(t *testing.T) {
	t.Parallel()
	_, err := Open(SinkConfig{
		URL: "https://joe:s3cret@host/", Hosts: []string{"a/b"}, Signing: Signing{Secrets: []string{"s3cret"}},
		Concurrency: -1, Timeout: time.Minute, KeyFile: "k",
	})
	for _, want := range []string{"credentials in it", "Hosts[0] is not", "secret 1 is not whsec_", "Concurrency is -1", "Timeout is 1m0s", "CertificateFile and KeyFile"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if strings.Contains(fmt.Sprint(err), "s3cret") || strings.Contains(fmt.Sprint(err), "joe") {
		t.Errorf("%v", err)
	}
	for _, bad := range []Signing{
		{Secrets: []string{secret, secret, secret}},
		{Secrets: []string{secretPrefix + "AAAA"}},
		{Secrets: []string{strings.TrimPrefix(secret, secretPrefix)}},
		{Secrets: []string{secret}, File: "f"},
		{Secrets: []string{""}},
	} {
		if _, err := Open(SinkConfig{URL: "https://example.com", Signing: bad}); err == nil || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%d secrets: %v", len(bad.Secrets), err)
		}
	}
}

func TestWhatChecksFind(t *testing.T) {
	t.Parallel()
	s := open(t, SinkConfig{
		URL: "http://example.com", Hosts: []string{"eu.example.com", "example.com"}, Signing: Signing{Secrets: []string{secret, oldSecret}},
	})
	found, err := s.Check(t.Context(), []string{"orders/*", "https://evil.example.com/*", "../x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, string(f.Severity)+": "+f.What)
	}
	want := []string{
		"warning: the URL is http://: what is sent can be read and changed on its way",
		"warning: the sink has several hosts, example.com and eu.example.com, and one position in the log: while one is away, messages to all wait",
		"note: requests are signed by two keys",
		`problem: destination "https://evil.example.com/*": the destination is at https://evil.example.com, which is neither the sink's URL nor one of its hosts`,
		`problem: destination "../x": the destination's path has a . or .. in it: fill it in by {…|path}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
