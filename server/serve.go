package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

const (
	// apiConnections and quickConnections limit the API's concurrent use of the database: however many requests come,
	// dispatchers keep their share of it. The quick ones are for what every request needs: requests whose statements
	// take long, or wait for a lock, leave them to the others.
	apiConnections   = 8
	quickConnections = 10

	// LockWait is the longest that a statement of the API waits for a lock, unless its login has a lock_timeout. It is
	// less than operators' statements may take: a statement that gives up has changed nothing, and reports that.
	LockWait = 5 * time.Second
)

// answerMargin is how much longer than the grace period requests may take at a stop.
const answerMargin = 5 * time.Second

// background is the context for work that must outlive the context of run.
var background = context.Background()

// patience is how long a client may take over each part of a request.
type patience struct {
	header  time.Duration // to send a request's header
	request time.Duration // to send all of it; package api has its own limit for bodies that it reads
	answer  time.Duration // to receive its answer, from the header on
	idle    time.Duration // between two requests
}

// usual is the API's patience.
var usual = patience{header: 5 * time.Second, request: 15 * time.Second, answer: 30 * time.Second, idle: time.Minute}

// apiServer serves the API, the console, or both on an address of its own.
type apiServer struct {
	name        string // of the component
	addr        string
	listener    net.Listener // bound at the start, so that an address in use shows as a mistake
	handler     http.Handler
	producer    *outbox.Producer // nil without the API
	pool, quick *pgxpool.Pool
	provider    *lateOIDC // nil without a provider
	login       *login    // nil if it is the process's, which is checked anyway
	patience    patience
	connections int           // of clients, at once
	bound       time.Duration // longest duration of a stop
	stopping    func()        // ends the streams of changes
	beside      *apiServer    // the console on another address; nil if there is none
	operations  bool          // it takes the steps of operations
	log         *slog.Logger
}

// newAPI makes the API of a process and binds its address. It returns nil if the address is taken and the API optional.
func newAPI(process app.Config, config Config) (*apiServer, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	log := process.Logger.With(slog.String("component", "api"))
	process.DatabaseURL = cmp.Or(config.DatabaseURL, process.DatabaseURL)
	pool, err := app.OpenPool(process, apiConnections, LockWait)
	if err != nil {
		return nil, err
	}
	quick, err := app.OpenPool(process, quickConnections, LockWait)
	if err != nil {
		pool.Close()
		return nil, err
	}
	a, err := newAPIOn(pool, quick, process, config, log)
	if err != nil {
		pool.Close() // nothing has connected yet
		quick.Close()
	}
	if config.Optional && errors.Is(err, syscall.EADDRINUSE) {
		return nil, nil // listen has logged it
	}
	return a, err
}

// complainer returns a function that logs the errors of looks for changes, which may fail twice a second: each new one
// at once, and then every ten seconds.
func complainer(log *slog.Logger) func(context.Context, error) {
	complaints := outage.Complaints{Most: 16}
	return func(ctx context.Context, err error) {
		if missed, due := complaints.Due(err.Error(), time.Now()); due {
			log.LogAttrs(ctx, slog.LevelWarn, "look for changes failed", slog.String("err", err.Error()),
				slog.Int("since_last_line", missed))
		}
	}
}

func newAPIOn(pool, quick *pgxpool.Pool, process app.Config, c Config, log *slog.Logger) (*apiServer, error) {
	config := c.API
	if config.Pool == nil {
		config.Pool, config.QuickPool = pool, cmp.Or(config.QuickPool, quick)
	}
	config.QuickPool = cmp.Or(config.QuickPool, config.Pool) // it may connect to another database
	if config.Producer == nil && c.DatabaseURL == "" {
		config.Producer = process.Producer
	}
	config.Producer = cmp.Or(config.Producer, outbox.NewProducer(config.QuickPool, outbox.NotifyCoalesced))
	var provider *lateOIDC
	if config.Authenticator == nil {
		known := NewAuthenticator(config.QuickPool, c.OIDC, log)
		config.Authenticator, provider = known, known.provider
	}
	config.Registerer = process.Registry
	var own *login
	if c.DatabaseURL != "" {
		own = &login{pool: pool}
	}
	stopping := make(chan struct{})
	config.Stopping = stopping
	config.Logger = log
	config.CountAtOnce = true
	if c.Console != nil && config.Watch == nil {
		config.Watch = watch.New(config.Pool, watch.Config{
			CountAtOnce: true, Stopping: stopping,
			Changes: watch.ChangesConfig{
				Complain: complainer(log),
			},
		})
	}
	a := &apiServer{
		name: "api", operations: true, producer: config.Producer, pool: pool, quick: quick, log: log,
		provider: provider, login: own,
		patience:    usual,
		connections: cmp.Or(c.Connections, defaultConnections),
		bound:       max(cmp.Or(process.GracePeriod, app.DefaultGracePeriod), 0) + answerMargin,
		stopping:    sync.OnceFunc(func() { close(stopping) }),
	}
	pages, err := newConsole(c, config, process.Logger)
	if err != nil {
		return nil, err
	}
	if a.handler, err = handlerOf(c, config, pages); err != nil {
		return nil, err
	}
	if c.Manual != nil {
		a.handler = withManual(a.handler, c.Manual)
		if pages != nil {
			pages = withManual(pages, c.Manual)
		}
	}
	a.place(c, pages, process.Logger)
	if err := a.listen(c.Optional); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// place sets what is served on which address: the console on its own address is a server alongside the API's, or the
// only one.
func (a *apiServer) place(c Config, pages http.Handler, log *slog.Logger) {
	a.addr = c.Addr
	switch log := log.With(slog.String("component", "console")); {
	case pages == nil || c.ConsoleAddr == "":
	case c.NoAPI || c.Addr == "":
		a.name, a.addr, a.handler, a.log = "console", c.ConsoleAddr, pages, log
	default:
		beside := *a
		beside.name, beside.addr, beside.handler, beside.provider, beside.producer = "console", c.ConsoleAddr, pages,
			nil, nil
		beside.log, beside.operations = log, false // a does them
		a.beside = &beside
	}
}

// listen binds the addresses of the server and of the one alongside it, which is left out if it is optional and its
// address is taken.
func (a *apiServer) listen(optional bool) (err error) {
	for _, one := range []*apiServer{a, a.beside} {
		if one == nil {
			continue
		}
		if one.listener, err = net.Listen("tcp", one.addr); err != nil {
			name := map[string]string{"api": "API", "console": "console"}[one.name]
			if optional && errors.Is(err, syscall.EADDRINUSE) {
				one.log.LogAttrs(background, slog.LevelWarn, "no "+name+": its address is taken",
					slog.String("addr", one.addr))
				if one == a.beside {
					a.beside = nil
					return nil
				}
			}
			return &app.AddressError{Of: name, Err: err}
		}
		one.addr = one.listener.Addr().String()
	}
	return nil
}

// newConsole makes the console, if it is configured, with what it shares with the API.
func newConsole(c Config, shared api.Config, log *slog.Logger) (http.Handler, error) {
	if c.Console == nil {
		return nil, nil
	}
	config := *c.Console
	config.Pool = cmp.Or(config.Pool, shared.Pool)
	if config.Authenticator == nil {
		config.Authenticator = shared.Authenticator
	}
	config.Kinds, config.Watch = cmp.Or(config.Kinds, shared.Kinds), cmp.Or(config.Watch, shared.Watch)
	config.AnonymousLoopback = config.AnonymousLoopback || shared.AnonymousLoopback
	config.Stopping = shared.Stopping
	config.Logger = log.With(slog.String("component", "console"))
	if c.Manual != nil {
		config.Manual = cmp.Or(config.Manual, manualPath)
	}
	return console.New(config)
}

// manualPath is the path of the manual, for which its pages are built.
const manualPath = "/manual/"

// withManual adds the manual to what an address serves. It needs no login, because it is the same for everybody.
func withManual(next, manual http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, manualPath) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			manual.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handlerOf returns what Addr serves: the API, and the console below /console/ unless that has an address of its own.
func handlerOf(c Config, config api.Config, pages http.Handler) (http.Handler, error) {
	requests := http.NotFoundHandler()
	if !c.NoAPI && c.Addr != "" {
		var err error
		if requests, err = api.New(config); err != nil {
			return nil, err
		}
	}
	if pages == nil || c.ConsoleAddr != "" {
		return requests, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/console/"):
			pages.ServeHTTP(w, r)
		case r.URL.Path == "/console", r.URL.Path == "/" && c.NoAPI:
			w.Header().Set("Location", "console/") // relative: a proxy may have removed a prefix
			w.WriteHeader(http.StatusSeeOther)
		default:
			requests.ServeHTTP(w, r)
		}
	}), nil
}

// ready returns why requests, or some of them, cannot be answered.
func (a *apiServer) ready() error {
	if a.login != nil {
		if err := a.login.ask(); err != nil {
			return err
		}
	}
	return a.provider.ready()
}

const (
	askInterval = time.Second // limits the queries that probes cause
	askTimeout  = time.Second
)

// login caches whether the database accepted the API's own login at the last check.
type login struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	at   time.Time
	took bool // it was accepted at some time
	err  error
}

func (l *login) ask() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) <= askInterval {
		return l.err
	}
	l.err = nil
	// If requests hold all connections, the login was accepted, and one more would wait for theirs.
	if stat := l.pool.Stat(); stat.AcquiredConns() < stat.MaxConns() {
		ctx, cancel := context.WithTimeout(background, askTimeout)
		defer cancel()
		l.err = l.pool.Ping(ctx)
	}
	if l.err != nil {
		if l.took && !pgsession.IsLoginRefused(l.err) { // the database is unavailable
			l.err = fmt.Errorf("%w: %w", app.ErrDegraded, l.err)
		}
		l.err = fmt.Errorf("the API's own database login: %w", l.err)
	}
	l.took = l.took || l.err == nil
	l.at = time.Now()
	return l.err
}

// close releases the address of an API that was never served.
func (a *apiServer) close() {
	if a.listener != nil {
		_ = a.listener.Close()
	}
	if a.beside != nil {
		a.beside.close()
	}
}

// runOperations takes the steps of operations on many jobs until the returned function is called, or ctx ends.
func (a *apiServer) runOperations(ctx context.Context) (stop func()) {
	if !a.operations {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var complaints outage.Complaints
	var running sync.WaitGroup
	running.Go(func() {
		_ = operator.New(a.pool).RunOperations(ctx, func(err error) { // it returns nil
			if state := pgsession.State(err); state == pgsession.UndefinedTable || state == pgsession.InvalidSchema {
				return // the process waits for the schema, and logs that
			}
			if missed, due := complaints.Due("", time.Now()); due {
				a.log.LogAttrs(ctx, slog.LevelWarn, "a step of an operation failed, and is tried again",
					slog.Any("err", err), slog.Int("times", missed+1))
			}
		})
	})
	return func() { cancel(); running.Wait() }
}

// run serves until ctx ends, and then until the requests that have arrived are answered.
func (a *apiServer) run(ctx context.Context) error {
	ln := a.listener
	a.listener = nil
	if ln == nil { // it stopped unasked and is started again
		var err error
		if ln, err = net.Listen("tcp", a.addr); err != nil {
			return err
		}
	}
	if a.provider != nil {
		ctx, cancel := context.WithCancel(ctx)
		var discovery sync.WaitGroup
		defer discovery.Wait()
		defer cancel()
		discovery.Go(func() { a.provider.discover(ctx) })
	}
	defer a.runOperations(ctx)()
	server := &http.Server{
		Handler:           a.handler,
		ReadHeaderTimeout: a.patience.header,
		ReadTimeout:       a.patience.request,
		WriteTimeout:      a.patience.answer,
		IdleTimeout:       a.patience.idle,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, map[string]string{"api": "API listens", "console": "console listens"}[a.name],
		slog.String("addr", a.addr))
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(background, a.bound)
		defer cancel()
		a.stopping() // Shutdown would wait for them
		err := server.Shutdown(bound)
		if err != nil {
			_ = server.Close() // cuts off requests in progress
		}
		if a.producer != nil {
			_ = a.producer.Flush(bound) // if it fails, polling makes up for it
		}
		stopped <- err
	})
	endIdle := func() {
		// This ends idle connections; an answer in progress can announce that its connection ends.
		server.SetKeepAlivesEnabled(false)
		server.SetKeepAlivesEnabled(true)
	}
	err := server.Serve(boundConnections(ln, a.connections, endIdle, a.log))
	if stop() { // ctx has not ended
		return err
	}
	if err := <-stopped; !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.New("requests were cut off")
}
