package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAJobThatCameOverHTTPIsHandled(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	handled := make(chan string, 1)
	r := start(t, greeter(func(_ context.Context, name string) error { handled <- name; return nil }),
		app.Config{DatabaseURL: pool.Config().ConnString()}, Config{API: api.Config{AnonymousLoopback: true}})
	r.awaitReady()
	res, err := probe.Post("http://"+r.addr+"/jobs", "application/json", strings.NewReader(`{"kind":"greet","payload":{"Name":"Ada"}}`))
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
	r := start(t, nil, alone(pool), Config{API: api.Config{Authenticator: who}})
	answered := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest("GET", "http://"+r.addr+"/jobs", nil)
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
		conn, err := net.Dial("tcp", r.addr)
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
	process, config := alone(pool), Config{Addr: ln.Addr().String(), API: api.Config{AnonymousLoopback: true}}
	if err := Run(t.Context(), nil, process, config); err == nil || !strings.Contains(err.Error(), "API address") {
		t.Errorf("Run = %v, want the mistake", err)
	}
	config.Optional = true
	process, a, err := compose(process, config)
	if err != nil || a != nil || len(process.Components) > 0 {
		t.Errorf("compose = %v, %v with %d components, want a process without an API", a, err, len(process.Components))
	}
	var logged strings.Builder
	process = alone(pool)
	process.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	config.Addr, config.Console, config.ConsoleAddr = "127.0.0.1:0", &console.Config{}, ln.Addr().String()
	process, a, err = compose(process, config)
	if err != nil || a == nil || a.beside != nil || len(process.Components) != 1 {
		t.Fatalf("compose = %v, %v with %d components, want an API without the console", a, err, len(process.Components))
	}
	a.close()
	closePoolOf(a)
	if !strings.Contains(logged.String(), `"no console: its address is taken"`) || !strings.Contains(logged.String(), ln.Addr().String()) {
		t.Errorf("logged %s, want the console's address", &logged)
	}
}

// What is made before a mistake is found is given up again: goleak looks.
func TestMistakesAreFoundAtTheStart(t *testing.T) {
	t.Parallel()
	for want, run := range map[string]func(*app.Config, *Config){
		"DatabaseURL is empty":     func(p *app.Config, _ *Config) { p.DatabaseURL = "" },
		"DatabaseURL (it may":      func(_ *app.Config, c *Config) { c.DatabaseURL = "postgres://%zz" },
		"Config.Connections is -1": func(_ *app.Config, c *Config) { c.Connections = -1 },
		"OIDC: ":                   func(_ *app.Config, c *Config) { c.OIDC = new(access.OIDCConfig) },
		"admin address":            func(p *app.Config, _ *Config) { p.AdminAddr = "127.0.0.1:notaport" },
	} {
		process, config := app.Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none"}, Config{Addr: "127.0.0.1:0", API: api.Config{AnonymousLoopback: true}}
		run(&process, &config)
		if err := Run(t.Context(), nil, process, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want %s…", err, want)
		}
	}
}

// A stream never ends by itself: a stop that waited for it would take its whole time.
func TestAStopEndsTheStreams(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, nil, alone(pool), Config{API: api.Config{AnonymousLoopback: true}})
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + r.addr + "/changes")
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("GET /changes: %d", res.StatusCode)
	}
	r.stop(errors.New("the test says so"))
	_ = readAll(t, res) // in good order, not cut off
	r.wait(nil)
}

// A server that takes no writes for a while (a disk that is nearly full, a demotion) must not
// be remembered for as long as a connection lives.
func TestTheAPIWritesAgainWhenTheDatabaseDoes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, nil, alone(pool), Config{API: api.Config{AnonymousLoopback: true}})
	post := func() int {
		t.Helper()
		res, err := probe.Post("http://"+r.addr+"/jobs", "application/json", strings.NewReader(`{"kind":"greet"}`))
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, res)
		return res.StatusCode
	}
	set := func(sql string) {
		t.Helper()
		for _, sql := range []string{`SET default_transaction_read_only = off`, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I ` + sql + `', current_database()); END $$`} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("SET default_transaction_read_only = on")
	if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	until := func(status int) time.Duration {
		t.Helper()
		began := time.Now()
		for post() != status {
			if time.Since(began) > time.Minute {
				t.Fatalf("the API does not answer %d", status)
			}
			time.Sleep(20 * time.Millisecond)
		}
		return time.Since(began)
	}
	until(http.StatusServiceUnavailable)
	set("RESET default_transaction_read_only")
	if took := until(http.StatusAccepted); took > 30*time.Second {
		t.Errorf("the API writes again after %s, want about a second", took)
	}
}

// The console stands below /console/ of the API's address, or on one of its own, and the API goes on beside it.
func TestTheConsoleStandsBesideTheAPI(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	see := func(url string) (int, string, string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := probe.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header.Get("Content-Type") + res.Header.Get("Location"), readAll(t, res)
	}
	anonymous := api.Config{AnonymousLoopback: true}
	manual := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "the manual at "+r.URL.Path) })
	beside := start(t, nil, alone(pool), Config{API: anonymous, Console: &console.Config{}, Manual: manual})
	beside.awaitReady()
	for path, want := range map[string][2]string{
		"/console/jobs": {"200", "text/html"}, "/console": {"303", "console/"}, "/jobs": {"200", "application/json"}, "/nothing": {"404", "application/problem+json"}, "/manual/guides/retries": {"200", "text/plain"},
	} {
		if code, kind, body := see("http://" + beside.addr + path); strconv.Itoa(code) != want[0] || !strings.Contains(kind, want[1]) {
			t.Errorf("%s: got %d %s %s", path, code, kind, body)
		}
	}
	if _, _, page := see("http://" + beside.addr + "/console/jobs"); !strings.Contains(page, `<a href="/manual/">manual</a>`) {
		t.Error("the console does not link to the manual")
	}
	_, a, err := compose(alone(pool), Config{API: anonymous, NoAPI: true, Console: &console.Config{}, ConsoleAddr: "127.0.0.1:0"})
	if err != nil || a.name != "console" || a.beside != nil {
		t.Fatalf("got %+v, %v", a, err)
	}
	a.close()
	closePoolOf(a)
	_, a, err = compose(alone(pool), Config{API: anonymous, Addr: "127.0.0.1:0", Console: &console.Config{}, ConsoleAddr: "127.0.0.1:0"})
	if err != nil || a.name != "api" || a.beside == nil || a.beside.addr == a.addr {
		t.Fatalf("got %+v, %v", a, err)
	}
	for address, want := range map[string]int{a.addr: http.StatusNotFound, a.beside.addr: http.StatusOK} {
		w := httptest.NewRecorder()
		handler := map[string]http.Handler{a.addr: a.handler, a.beside.addr: a.beside.handler}[address]
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/console/jobs", nil)
		req.RemoteAddr, req.Host = "127.0.0.1:7", "localhost"
		if handler.ServeHTTP(w, req); w.Code != want {
			t.Errorf("%s: got %d, want %d", address, w.Code, want)
		}
	}
	a.close()
	closePoolOf(a)
}

// An act on many jobs that is confirmed in a console without an API beside it is carried out, by the same process.
func TestAConsoleOnItsOwnCarriesOperationsOut(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]Config{
		"alone":      {NoAPI: true, Console: &console.Config{}, ConsoleAddr: "127.0.0.1:0"},
		"beside API": {Addr: "127.0.0.1:0", Console: &console.Config{}, ConsoleAddr: "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			config.API = api.Config{AnonymousLoopback: true}
			start(t, nil, alone(pool), config)
			if _, err := outbox.Enqueue(t.Context(), pool, outbox.Raw{KindName: "greet", Payload: []byte("{}")}, outbox.Options{}); err != nil {
				t.Fatal(err)
			}
			o := operator.New(pool)
			op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs})
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); op.FinishedAt.IsZero(); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it has come to %+v", op)
				}
				if op, err = o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil {
					t.Fatal(err)
				}
			}
			if op.Done != 1 {
				t.Errorf("done %d, want 1", op.Done)
			}
		})
	}
}

func closePoolOf(a *apiServer) {
	a.stopping()
	a.pool.Close()
	a.quick.Close()
}

// A password that was changed may reach the API's login alone: such a process must not replace one that works.
func TestALoginThatTheDatabaseRefusesIsUnready(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	broken, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	broken.User = url.User("nobody_of_this_name")
	r := start(t, nil, alone(pool), Config{DatabaseURL: broken.String()})
	if detail := r.awaitReadyz(http.StatusServiceUnavailable, "unready", "failing"); !strings.Contains(detail, "the API's own database login") || !strings.Contains(detail, "nobody_of_this_name") {
		t.Errorf("the detail is %q, want the login", detail)
	}
	// Nor is one that was taken before and is refused now away.
	refused := pool.Config()
	refused.ConnConfig.Database = "no_such_database"
	refusing, err := pgxpool.NewWithConfig(t.Context(), refused)
	if err != nil {
		t.Fatal(err)
	}
	defer refusing.Close()
	if err := (&login{pool: refusing, took: true}).ask(); err == nil || errors.Is(err, app.ErrDegraded) {
		t.Errorf("beside no such database: %v, want it refused and not degraded", err)
	}
}

// A process that starts while the OIDC provider is away serves those who have tokens.
func TestAnAPIWithoutItsProviderIsDegradedAndReady(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	provider := httptest.NewServer(http.NotFoundHandler())
	provider.Close()
	r := start(t, nil, alone(pool), Config{OIDC: &access.OIDCConfig{Issuer: provider.URL, Audience: "posthaste"}})
	if detail := r.awaitReadyz(http.StatusOK, "degraded", "degraded"); !strings.Contains(detail, "no JWT is accepted") {
		t.Errorf("the detail is %q, want what does not work", detail)
	}
	token, _, err := access.NewTokens(pool, access.TokensConfig{}).Create(t.Context(), access.Grant{Name: "shop", CreatedBy: "test", Tenant: outbox.RootTenant, Capabilities: []access.Capability{access.JobsRead}})
	if err != nil {
		t.Fatal(err)
	}
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/jobs", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Authorization", "Bearer "+token.Reveal())
	res, err := probe.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	if body := readAll(t, res); res.StatusCode != http.StatusOK {
		t.Errorf("GET /jobs with a token: %d %s, want 200", res.StatusCode, body)
	}
}
