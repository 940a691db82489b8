package app

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/reaper"
	"github.com/posthaste-dev/posthaste/schedule"
)

const noHandlers = "no handler and no webhook: jobs are left alone"

var errStopped = errors.New("stopped unexpectedly")

// compose makes the components and connects them: the listener's signals wake the dispatcher, the reaper and the
// scheduler, and whether it hears determines how often they poll.
func (p *process) compose(mux *dispatcher.Mux) error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	wake, wakeReaper, wakeScheduler := listener.NewSignal(), listener.NewSignal(), listener.NewSignal()
	if !p.config.NoListen {
		note(p.addListener(wake, wakeReaper, wakeScheduler))
	}
	if !p.config.NoDispatch {
		d, err := p.addDispatcher(mux, wake)
		note(err)
		for _, c := range p.config.Components {
			if c.Dispatching != nil && d != nil {
				c.Dispatching(d.Presence())
			}
		}
		if p.config.Producer != nil && d != nil {
			d.Attach(p.config.Producer)
		}
		if p.config.Producer != nil && err == nil {
			engine.InternalOf(p.config.Producer).AlsoWake(func() { wakeReaper.Set() })
		}
	}
	if !p.config.NoReap {
		note(p.addReaper(wakeReaper))
	}
	if !p.config.NoSchedule {
		note(p.addScheduler(wakeScheduler))
	}
	for _, c := range p.config.Components {
		p.components = append(p.components, &component{
			name: c.Name, run: c.Run, look: unlessReady(c.Ready),
			needSchema: c.NeedsSchema,
		})
	}
	if p.config.AdminAddr != "" && len(errs) == 0 {
		var err error
		p.admin, err = newAdmin(p)
		if p.config.AdminOptional && errors.Is(err, syscall.EADDRINUSE) {
			p.log.LogAttrs(background, slog.LevelWarn,
				"no admin server: its address is taken, so that this process has no metrics and no readiness until AdminAddr is another", slog.String("addr", p.config.AdminAddr))
			err = nil
		}
		note(err)
	}
	p.registerCollectors()
	return errors.Join(errs...)
}

func (p *process) addListener(wake, wakeReaper, wakeScheduler listener.Signal) error {
	l, err := listener.New(p.config.ListenURL, dispatcher.Channel, wake, listener.Config{
		AlsoWake:    []listener.Signal{wakeReaper},
		ByPayload:   map[string]listener.Signal{schedule.WakePayload: wakeScheduler},
		OnListening: func(bool) { wake.Set(); wakeReaper.Set() }, // they apply their new poll intervals at once
		Pool:        p.pool, Canary: p.pool, Logger: p.log.With(slog.String("component", "listener")),
		Registerer: p.config.Registry,
	})
	if err != nil {
		return err
	}
	p.listener = l
	p.components = append(p.components, &component{name: "listener", run: l.Run, look: func() State {
		if !l.Listening() {
			return State{State: stateNotListening, Detail: "no notifications arrive: jobs are found by polling"}
		}
		return State{State: stateListening}
	}})
	return nil
}

// addDispatcher makes the dispatcher. It returns nil if there is nothing to handle.
func (p *process) addDispatcher(mux *dispatcher.Mux, wake <-chan struct{}) (*dispatcher.Dispatcher, error) {
	if mux == nil || len(mux.Kinds()) == 0 {
		p.log.LogAttrs(background, slog.LevelWarn, noHandlers)
		return nil, nil
	}
	c := p.config
	d := dispatcher.Config{
		Queues: c.Queues, Worker: c.Worker, PollInterval: c.PollInterval, LeaseTTL: c.LeaseTTL, Timeout: c.Timeout,
		Backoff: c.Backoff, GracePeriod: c.GracePeriod, Logger: p.log, Registerer: c.Registry, Wake: wake,
		LogJobs: c.LogJobs,
	}
	if p.listener != nil {
		d.Listening = p.listener.Listening
	}
	made, err := dispatcher.New(p.handlers, mux, d)
	if err != nil {
		return nil, err
	}
	p.warnOfQueues(mux)
	p.components = append(p.components, &component{
		name: "dispatcher", run: made.Run, look: dispatching(made),
		needSchema: true,
	})
	return made, nil
}

// warnOfQueues warns of each schedule whose kind this process handles, but not in the schedule's queue: unless another
// process works that queue, its jobs wait forever.
func (p *process) warnOfQueues(mux *dispatcher.Mux) {
	for _, s := range p.config.Schedules {
		kind, queue := s.Job()
		_, worked := p.config.Queues[queue]
		if len(p.config.Queues) == 0 {
			worked = queue == engine.DefaultQueue
		}
		if !worked && slices.Contains(mux.Kinds(), kind) {
			p.log.LogAttrs(background, slog.LevelWarn,
				"this process handles the kind of a schedule, but does not work its queue: name it in Config.Queues",
				slog.String("schedule", s.Name()), slog.String("kind", kind), slog.String("queue", queue))
		}
	}
}

// dispatching returns the state function of a dispatcher. If the dependencies of its handlers are unavailable, /readyz
// reports it, but the process stays ready: the kinds with other dependencies go on.
func dispatching(d *dispatcher.Dispatcher) func() State {
	return func() State {
		state := unlessReady(d.Ready)()
		if state.State != stateWorking {
			return state
		}
		var waiting []string
		for _, o := range d.Outages() {
			waiting = append(waiting, fmt.Sprintf("%s in queue %s since %s", o.Kind, o.Queue,
				o.Since.UTC().Format(time.RFC3339)))
		}
		if len(waiting) > 0 {
			state.Detail = "jobs wait for what is unavailable: " + strings.Join(waiting, ", ")
		}
		return state
	}
}

func (p *process) addReaper(wake <-chan struct{}) error {
	c := reaper.Config{
		Keep: p.config.Keep, KeepByStatus: p.config.KeepByStatus, Wake: wake, KeepByQueue: p.config.KeepByQueue,
		KeepEvents: p.config.KeepEvents, LoseUnread: p.config.LoseUnread,
		KeepInbox: p.config.KeepInbox, KeepAudit: p.config.KeepAudit,
		Logger: p.log, Registerer: p.config.Registry,
	}
	if p.listener != nil {
		c.Listening = p.listener.Listening
	}
	r, err := reaper.New(p.handlers, c)
	if err != nil {
		return err
	}
	p.components = append(p.components, &component{
		name: "reaper", run: r.Run, look: unlessReady(r.Ready),
		needSchema: true,
	})
	return nil
}

func (p *process) addScheduler(wake <-chan struct{}) error {
	s, err := schedule.New(p.handlers, schedule.Config{
		Schedules: p.config.Schedules, Wake: wake, Logger: p.log,
		Registerer: p.config.Registry,
	})
	if err != nil {
		return err
	}
	p.components = append(p.components, &component{
		name: "scheduler", run: s.Run, look: unlessReady(s.Ready),
		needSchema: true,
	})
	return nil
}

// registerCollectors registers the metrics that belong to no component. It keeps those that the caller has registered
// already.
func (p *process) registerCollectors() {
	register := func(c prometheus.Collector) { _ = p.config.Registry.Register(c) } // fails only if already there
	register(newBuildInfo())
	register(newReadyMetric(&p.readiness))
	register(collectors.NewGoCollector())
	register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	publish := func(pool *pgxpool.Pool, name string) {
		register(newPoolMetrics(pool, name))
	}
	publish(p.pool, "process")
	for _, c := range p.config.Components {
		if c.Pool != nil {
			publish(c.Pool, c.Name)
		}
		if c.QuickPool != nil {
			publish(c.QuickPool, c.Name+" quick")
		}
	}
	if p.handlers != p.pool {
		publish(p.handlers, "handlers")
	}
}
