package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// admin serves the endpoints for operators and their tools.
type admin struct {
	server   *http.Server
	listener net.Listener
	log      *slog.Logger
}

// AddressError reports that the process cannot listen at one of its addresses.
type AddressError struct {
	Of  string // "admin", "API" or "console"
	Err error
}

func (e *AddressError) Error() string { return e.Of + " address: " + e.Err.Error() }
func (e *AddressError) Unwrap() error { return e.Err }

// newAdmin binds the address, so that an address in use is reported as a mistake at the start.
func newAdmin(p *process) (*admin, error) {
	ln, err := net.Listen("tcp", p.config.AdminAddr)
	if err != nil {
		return nil, &AddressError{Of: "admin", Err: err}
	}
	log := p.log.With(slog.String("component", "admin"))
	return &admin{
		listener: ln,
		log:      log,
		server: &http.Server{
			Handler:           p.adminHandler(),
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second, // net/http/pprof extends it for long profiles
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}, nil
}

func (p *process) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", p.serveReadiness)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.config.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	if !p.config.NoPprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (p *process) serveReadiness(w http.ResponseWriter, r *http.Request) {
	report := p.report(r.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !report.Ready() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	body := json.NewEncoder(w)
	body.SetIndent("", "  ")
	_ = body.Encode(report) // the client went away
}

// start serves until the returned function is called. A nil admin serves nothing.
func (a *admin) start() (stop func()) {
	if a == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.LogAttrs(background, slog.LevelError, "admin server stopped", slog.Any("err", err))
		}
	}()
	a.log.LogAttrs(background, slog.LevelInfo, "admin server listens", slog.String("addr", a.listener.Addr().String()))
	return func() {
		bound, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if a.server.Shutdown(bound) != nil {
			_ = a.server.Close() // cuts off profiles in progress
		}
		<-ended
	}
}
