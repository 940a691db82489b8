package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Config configures a process. With a DatabaseURL, its zero value is a sane production setup in which every component
// runs.
type Config struct {
	DatabaseURL string // URL of Postgres; required unless Pool is given
	ListenURL   string // URL for the listener; "" means the others' database. Set it when theirs leads to a pooler

	// Pool serves the handlers, for job.Tx: give it a connection for each handler that is in a transaction at once. The
	// caller closes it. If it is nil, the process opens a pool to DatabaseURL, whose pool_max_conns limits its
	// connections (by default one per processor, but at least four).
	Pool *pgxpool.Pool

	// Producer is set if this program also enqueues, in the same database. The transactions that it begins then wake
	// this process's dispatcher without a detour through the database, or claim their job for it.
	Producer *outbox.Producer

	NoDispatch bool // claim no jobs
	NoListen   bool // do not LISTEN: jobs are found by polling
	NoReap     bool // expire no leases, trim no history: another process does
	NoSchedule bool // declare and fire no schedules

	// Migrate brings the schema to the state of this build at the start, like migrate.Up of package migrations/migrate.
	// If it is nil, the process waits until another has done so.
	Migrate func(context.Context, *pgxpool.Pool) error

	Queues       map[string]dispatcher.QueueConfig // nil means the queue "default"
	Worker       string                            // begins the name of the leases' holder; "" means host-pid
	PollInterval time.Duration                     // while notifications arrive; 0 means 30 s. Otherwise at most 2 s
	LeaseTTL     time.Duration                     // 0 means 15 s
	Timeout      time.Duration                     // of one attempt; 0 means 5 min
	Backoff      dispatcher.BackoffPolicy          // nil means dispatcher.Exponential(1 s, 1 h)
	GracePeriod  time.Duration                     // for running jobs at a stop; 0 means 20 s, negative none
	// DrainDelay is how long to keep serving, unready, before a stop, so that proxies notice; 0 means none.
	DrainDelay time.Duration
	LogJobs    dispatcher.LogJobs // "" means all
	// Keep is how long closed jobs are kept, at least 24 h; 0 means 30 days.
	Keep time.Duration
	// KeepByStatus replaces Keep for the given statuses, at least 24 h; 0 deletes at the next pass. nil means 90 days
	// for dead letters, and, without Keep, 14 days for those that succeeded; a status without an entry is kept as with
	// nil.
	KeepByStatus map[outbox.Status]time.Duration
	// KeepByQueue replaces both for the jobs of a queue, status by status.
	KeepByQueue map[string]map[outbox.Status]time.Duration

	KeepEvents time.Duration // how long events are kept, at least 24 h; 0 means 7 days
	KeepInbox  time.Duration // how long inbox.Once remembers a message, at least 24 h; 0 means 14 days
	KeepAudit  time.Duration // how long the audit trail is kept, at least 30 days; 0 means 365 days
	LoseUnread bool          // drop days of events that a sink has not read; otherwise they wait for it

	// Schedules are declared at the start; package schedule explains how that treats existing ones. The process fires
	// all stored schedules, including those that others declared.
	Schedules []schedule.Schedule

	// Cut, when closed, ends a stop at once; see [Signals]. A nil Cut never does.
	Cut <-chan struct{}

	// AdminAddr is the address that serves /livez, /readyz, /metrics and /debug/pprof/, such as "127.0.0.1:9090", or
	// ":9090" where a kubelet probes it. It has no login: do not expose it. "" serves them nowhere.
	AdminAddr string
	// NoPprof leaves /debug/pprof/ out.
	NoPprof bool
	// AdminOptional lets the process run without the admin server if AdminAddr is taken.
	AdminOptional bool

	// Components run in addition to those of this package.
	Components []Component

	Logger   *slog.Logger         // nil logs nothing
	Registry *prometheus.Registry // nil means a new one
}

// DefaultGracePeriod is the grace period of a Config that sets none.
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

// Validate returns the mistakes in the configuration, joined, each as an [*outbox.InvalidError] that names the field.
// It checks ranges. [Run] also returns what the parts refuse: least times, queues, schedules and addresses.
func (c Config) Validate() error {
	var errs []error
	if c.DatabaseURL == "" && c.Pool == nil {
		errs = append(errs, invalid.Field("Config.DatabaseURL", "is empty and Pool is nil, want one of them"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"PollInterval", c.PollInterval},
		{"LeaseTTL", c.LeaseTTL},
		{"Timeout", c.Timeout},
		{"DrainDelay", c.DrainDelay},
		{"GracePeriod", max(c.GracePeriod, 0)},
		{"Keep", c.Keep},
		{"KeepEvents", c.KeepEvents},
		{"KeepInbox", c.KeepInbox},
		{"KeepAudit", c.KeepAudit},
	} {
		if d.value < 0 || d.value > engine.MaxDuration {
			errs = append(errs, invalid.Field("Config."+d.name, "is %s, want up to 100 years, or 0 for the default",
				d.value))
		}
	}
	if fault := engine.WorkerFault(c.Worker); fault != "" {
		errs = append(errs, invalid.Field("Config.Worker", "%s", fault))
	}
	if c.NoSchedule && len(c.Schedules) > 0 {
		errs = append(errs, invalid.Field("Config.NoSchedule", "is set and Schedules are given, want one of them"))
	}
	return errors.Join(errs...)
}
