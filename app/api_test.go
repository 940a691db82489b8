package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestAJobThatCameOverHTTPIsHandled(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	handled := make(chan string, 1)
	r := start(t, greeter(func(_ context.Context, name string) error { handled <- name; return nil }), Config{
		DatabaseURL: pool.Config().ConnString(), APIAddr: "127.0.0.1:0", API: api.Config{AnonymousLoopback: true},
	})
	r.awaitReadyz(200, "ready", map[string]string{"api": "working"})
	res, err := probe.Post("http://"+r.api.addr+"/jobs", "application/json", strings.NewReader(`{"kind":"greet","payload":{"Name":"Ada"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if body := readAll(t, res); res.StatusCode != http.StatusAccepted {
		t.Fatalf("POST /jobs: %d %s", res.StatusCode, body)
	}
	select {
	case name := <-handled:
		if name != "Ada" {
			t.Errorf("handled %q", name)
		}
	case <-time.After(time.Minute):
		t.Fatal("the job was not handled")
	}
}

// waiting is an authenticator whose answer comes when the test says so.
type waiting struct{ asked, answer chan struct{} }

func (w waiting) Authenticate(context.Context, string) (access.Principal, error) {
	close(w.asked)
	<-w.answer
	return access.Principal{Name: "late", AllTenants: true, Capabilities: map[access.Capability]bool{access.JobsRead: true}}, nil
}

func TestAStopAnswersTheRequestsThatHaveCome(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	who := waiting{make(chan struct{}), make(chan struct{})}
	r := start(t, nil, Config{
		DatabaseURL: pool.Config().ConnString(), NoListen: true, NoReap: true, NoDispatch: true,
		APIAddr: "127.0.0.1:0", API: api.Config{Authenticator: who},
	})
	answered := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest("GET", "http://"+r.api.addr+"/jobs", nil)
		req.Header.Set("Authorization", "Bearer x")
		res, err := probe.Do(req)
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		_ = res.Body.Close()
		answered <- res.StatusCode
	}()
	await(t, "the request", who.asked)
	r.stop(errors.New("the test says so"))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // until nobody new is let in
		conn, err := net.Dial("tcp", r.api.addr)
		if err != nil {
			break
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("connections are still taken")
		}
	}
	close(who.answer)
	if got := <-answered; got != http.StatusOK {
		t.Errorf("the request was answered %d, want 200", got)
	}
	r.wait(nil)
}

func TestAnAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	config := Config{DatabaseURL: pool.Config().ConnString(), APIAddr: ln.Addr().String(), API: api.Config{AnonymousLoopback: true}}
	if _, err := newProcess(nil, config); err == nil || !strings.Contains(err.Error(), "API address") {
		t.Errorf("newProcess = %v, want the mistake", err)
	}
	config.APIOptional = true
	p, err := newProcess(nil, config)
	if err != nil {
		t.Fatal(err)
	}
	p.closePools()
}

// A stream never ends by itself: a stop that waited for it would take its whole time.
func TestAStopEndsTheStreams(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, nil, Config{
		DatabaseURL: pool.Config().ConnString(), NoListen: true, NoReap: true, NoDispatch: true,
		APIAddr: "127.0.0.1:0", API: api.Config{AnonymousLoopback: true},
	})
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + r.api.addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("GET /events: %d", res.StatusCode)
	}
	r.stop(errors.New("the test says so"))
	_ = readAll(t, res) // in good order, not cut off
	r.wait(nil)
}
