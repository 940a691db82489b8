package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Config is how a process works. With a DatabaseURL, its zero value is a sane
// production setup in which every component runs.
type Config struct {
	DatabaseURL string // of Postgres; required unless Pool is given
	ListenURL   string // the listener's; "" is as all others connect. Set it when that leads to a pooler

	// Pool is the handlers' own, for job.Tx: give it a connection for each handler that is in a transaction at once.
	// The caller closes it. Nil opens one to DatabaseURL, whose pool_max_conns says how many connections it may have
	// (by default one for each processor, but at least four).
	Pool *pgxpool.Pool

	// Producer, if this program enqueues too, in the same database: the transactions
	// that it begins wake the dispatcher here without the way through the database, or
	// claim their job for it.
	Producer *outbox.Producer

	NoDispatch bool // claim no jobs
	NoListen   bool // do not LISTEN: jobs are found by polling
	NoReap     bool // expire no leases, trim no history: another process does
	NoSchedule bool // declare and fire no schedules

	// Migrate brings the schema to the state of this build at the start, such as migrate.Up
	// of package migrations/migrate. Nil waits until somebody else has.
	Migrate func(context.Context, *pgxpool.Pool) error

	Queues       map[string]dispatcher.QueueConfig // nil works the queue "default"
	Worker       string                            // who holds the leases; "" is host-pid and 8 hex digits
	PollInterval time.Duration                     // while notifications arrive; 0 is 30 s. Otherwise at most 2 s
	LeaseTTL     time.Duration                     // 0 is 15 s
	Timeout      time.Duration                     // of one attempt; 0 is 5 min
	Backoff      dispatcher.BackoffPolicy          // nil is dispatcher.Exponential(1 s, 1 h)
	GracePeriod  time.Duration                     // for running jobs at a stop; 0 is 20 s, negative none
	DrainDelay   time.Duration                     // unready before a stop (default 0): proxies still send requests
	LogJobs      dispatcher.LogJobs                // "" is all
	// Keep is how long closed jobs are kept, at least 24 h; 0 is 30 days, and 14 for those that succeeded.
	Keep         time.Duration
	KeepByStatus map[outbox.Status]time.Duration // of outcomes that differ from Keep, and of dead letters (90 days)
	KeepByQueue  map[string]map[outbox.Status]time.Duration
	KeepEvents   time.Duration // how long events are kept, at least 24 h; 0 is 7 days
	KeepInbox    time.Duration // how long inbox.Once remembers a message; 0 is 14 days
	KeepAudit    time.Duration // how long it is known who did what, at least 30 days; 0 is 365 days
	LoseUnread   bool          // drop days of events that a sink has not read; otherwise they stay until it has

	// Schedules are declared at the start: package schedule says what that means for
	// those that are there already. The process fires all stored schedules, also those
	// that others declared.
	Schedules []schedule.Schedule

	// Cut, when closed, ends a stop at once; see [Signals]. Nil never does.
	Cut <-chan struct{}

	// AdminAddr is where /livez, /readyz, /metrics and /debug/pprof/ are served,
	// such as "127.0.0.1:9090". There is no login: do not expose it. "" serves
	// them nowhere.
	AdminAddr string
	// NoPprof serves no /debug/pprof/ there.
	NoPprof bool
	// AdminOptional goes on without them if AdminAddr is taken.
	AdminOptional bool

	// Components run besides those of this package.
	Components []Component

	Logger   *slog.Logger         // nil logs nothing
	Registry *prometheus.Registry // nil makes a new one
}

// DefaultGracePeriod is that of a Config without one.
const DefaultGracePeriod = 20 * time.Second

func (c Config) withDefaults() Config {
	c.GracePeriod = cmp.Or(c.GracePeriod, DefaultGracePeriod)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c
}

// Validate says everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.DatabaseURL == "" && c.Pool == nil {
		errs = append(errs, errors.New("DatabaseURL is empty and Pool is nil, want one of them"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"PollInterval", c.PollInterval}, {"LeaseTTL", c.LeaseTTL}, {"Timeout", c.Timeout}, {"DrainDelay", c.DrainDelay}, {"GracePeriod", max(c.GracePeriod, 0)}, {"Keep", c.Keep}, {"KeepEvents", c.KeepEvents}, {"KeepInbox", c.KeepInbox}, {"KeepAudit", c.KeepAudit}} {
		if d.value < 0 || d.value > engine.MaxDuration {
			errs = append(errs, fmt.Errorf("%s is %s, want up to 100 years, or 0 for the default", d.name, d.value))
		}
	}
	if fault := engine.WorkerFault(c.Worker); fault != "" {
		errs = append(errs, errors.New("Worker "+fault))
	}
	if c.NoSchedule && len(c.Schedules) > 0 {
		errs = append(errs, errors.New("NoSchedule is set and Schedules are given, want one of them"))
	}
	return errors.Join(errs...)
}
