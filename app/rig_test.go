package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type greet struct{ Name string }

func (greet) Kind() string { return "greet" }

// greeter returns a mux whose handler does as told.
func greeter(handle func(context.Context, string) error) *dispatcher.Mux {
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[greet]) error { return handle(ctx, job.Args.Name) })
	return mux
}

func nothing(context.Context, string) error { return nil }

// running is a process under test.
type running struct {
	*process
	t       *testing.T
	stop    context.CancelCauseFunc
	ended   chan error
	stopped bool
}

// start runs a process with an admin server until the test is over or it is
// stopped.
func start(t *testing.T, mux *dispatcher.Mux, config Config) *running {
	t.Helper()
	return startWith(t, mux, config, func(*process) {})
}

// startWith starts a process as start does, after change has changed it.
func startWith(t *testing.T, mux *dispatcher.Mux, config Config, change func(*process)) *running {
	t.Helper()
	config.AdminAddr = "127.0.0.1:0"
	p, err := newProcess(mux, config)
	if err != nil {
		t.Fatal(err)
	}
	change(p)
	ctx, stop := context.WithCancelCause(context.Background())
	r := &running{process: p, t: t, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- p.run(ctx) }()
	t.Cleanup(func() {
		if !r.stopped {
			r.end(nil)
		}
	})
	return r
}

// end stops the process and checks what Run returns.
func (r *running) end(want error) {
	r.t.Helper()
	r.stop(errors.New("the test says so"))
	r.wait(want)
}

// awaitComponents returns when every component has ended.
func (r *running) awaitComponents() {
	for _, c := range r.components {
		for c.running.Load() {
			time.Sleep(time.Millisecond)
		}
	}
}

func (r *running) wait(want error) {
	r.t.Helper()
	r.stopped = true
	select {
	case err := <-r.ended:
		if !errors.Is(err, want) {
			r.t.Errorf("Run returned %v, want %v", err, want)
		}
	case <-time.After(time.Minute):
		r.t.Fatal("Run did not return")
	}
}

var probe = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

// readyz returns the status code and the body of /readyz.
func (r *running) readyz() (int, Report) {
	r.t.Helper()
	res, err := probe.Get("http://" + r.admin.listener.Addr().String() + "/readyz")
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	var report Report
	if err := json.NewDecoder(res.Body).Decode(&report); err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, report
}

// awaitReadyz waits until /readyz says what is wanted; details are not compared.
func (r *running) awaitReadyz(code int, status string, states map[string]string) {
	r.t.Helper()
	want := map[string]string{"database": "up", "schema": "current", "dispatcher": "working", "reaper": "working", "scheduler": "working", "listener": "listening"}
	for name, state := range states {
		want[name] = state
	}
	var diff string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		gotCode, report := r.readyz()
		got := map[string]string{}
		for name, s := range report.Components {
			got[name] = s.State
		}
		diff = cmp.Diff(want, got)
		if gotCode == code && report.Status == status && diff == "" {
			return
		}
		diff = report.Status + "\n" + diff
	}
	r.t.Fatalf("/readyz does not become %d %s (-want +got): %s", code, status, diff)
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
	}
}

func readAll(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
