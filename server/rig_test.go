package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
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

// alone returns the configuration of a process that does nothing but what is added to it.
func alone(pool *pgxpool.Pool) app.Config {
	return app.Config{DatabaseURL: pool.Config().ConnString(), NoListen: true, NoReap: true, NoDispatch: true, NoSchedule: true}
}

// running is a process under test.
type running struct {
	t       *testing.T
	addr    string      // of the API
	admin   chan string // of the admin server, once
	stop    context.CancelCauseFunc
	ended   chan error
	stopped bool
}

// start runs a process with the API and an admin server until the test is over or it is
// stopped.
func start(t *testing.T, mux *dispatcher.Mux, process app.Config, config Config) *running {
	t.Helper()
	return startWith(t, mux, process, config, func(*apiServer) {})
}

// startWith starts a process as start does, after change has changed its API.
func startWith(t *testing.T, mux *dispatcher.Mux, process app.Config, config Config, change func(*apiServer)) *running {
	t.Helper()
	admin := make(chan string, 1)
	config.Addr, process.AdminAddr, process.Logger = "127.0.0.1:0", "127.0.0.1:0", slog.New(adminAddress(admin))
	process, a, err := compose(process, config)
	if err != nil {
		t.Fatal(err)
	}
	change(a)
	ctx, stop := context.WithCancelCause(context.Background())
	r := &running{t: t, addr: a.addr, admin: admin, stop: stop, ended: make(chan error, 1)}
	go func() {
		defer a.close()
		r.ended <- app.Run(ctx, mux, process)
	}()
	t.Cleanup(func() {
		if !r.stopped {
			r.end(nil)
		}
	})
	return r
}

// adminAddress is a handler of logs that waits for the line about the admin server.
type adminAddress chan string

func (adminAddress) Enabled(context.Context, slog.Level) bool { return true }
func (a adminAddress) WithAttrs([]slog.Attr) slog.Handler     { return a }
func (a adminAddress) WithGroup(string) slog.Handler          { return a }
func (a adminAddress) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "admin server listens" {
		r.Attrs(func(attr slog.Attr) bool { a <- attr.Value.String(); return false })
	}
	return nil
}

// end stops the process and checks what Run returns.
func (r *running) end(want error) {
	r.t.Helper()
	r.stop(errors.New("the test says so"))
	r.wait(want)
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

// awaitReady waits until /readyz says that the process and its API work.
func (r *running) awaitReady() {
	r.t.Helper()
	r.awaitReadyz(http.StatusOK, "ready", "working")
}

// awaitReadyz waits until /readyz is of the status and says so of the process and of its API, and returns the API's
// detail.
func (r *running) awaitReadyz(code int, status, api string) (detail string) {
	r.t.Helper()
	var url string
	select {
	case addr := <-r.admin:
		url = "http://" + addr + "/readyz"
	case <-time.After(time.Minute):
		r.t.Fatal("the admin server does not listen")
	}
	var report app.Report
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		res, err := probe.Get(url)
		if err != nil {
			r.t.Fatal(err)
		}
		body := readAll(r.t, res)
		report = app.Report{}
		if err := json.Unmarshal([]byte(body), &report); err != nil {
			r.t.Fatal(err)
		}
		if got := report.Components["api"]; res.StatusCode == code && report.Status == status && got.State == api {
			return got.Detail
		}
	}
	r.t.Fatalf("/readyz does not become %d %s: %+v", code, status, report)
	return ""
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
