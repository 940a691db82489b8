package dispatcher

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// Config configures a dispatcher. Its zero value is a sane production setup that works the queue "default" and polls
// every two seconds; set Wake and Hearing, from a listener, to start jobs within milliseconds.
type Config struct {
	Queues map[string]QueueConfig // nil works the queue "default". outbox.Options.Queue documents valid names
	// Worker names the holder of the leases; "" means host-pid. A random suffix is added, so names may repeat. The
	// metrics' label worker_id is the name without the suffix and the pid.
	Worker string

	// Wake signals that there may be work. A receive is a hint; any number may be lost.
	Wake <-chan struct{}
	// Hearing reports whether Wake is currently reliable. Nil means it never is.
	Hearing func() bool

	PollInterval     time.Duration // between looks while Hearing reports true; 0 means 30 s
	DeafPollInterval time.Duration // between looks otherwise; 0 means 2 s, or PollInterval if that is less
	LeaseTTL         time.Duration // 0 means 15 s, the least is 1 s; after it others take over a dead worker's jobs
	Timeout          time.Duration // of one attempt; 0 means 5 min
	Backoff          BackoffPolicy // nil means Exponential(1 s, 1 h)
	GracePeriod      time.Duration // for running jobs after a stop; 0 means 20 s, negative none

	LogJobs    LogJobs               // which lines about jobs are logged; "" means LogAll
	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere

	claimBytes int // of a claim's payloads, estimated from the last ones; 0 means maxClaimBytes
}

// QueueConfig configures how the dispatcher works one queue.
type QueueConfig struct {
	Concurrency int // jobs of the queue running at once in this process; 0 means 64
}

func (c Config) withDefaults() Config {
	if len(c.Queues) == 0 {
		c.Queues = map[string]QueueConfig{engine.DefaultQueue: {}}
	}
	if c.Worker == "" {
		c.Worker = fmt.Sprintf("%.40s-%d", hostname(), os.Getpid())
	}
	c.LogJobs = cmp.Or(c.LogJobs, LogAll)
	c.PollInterval = cmp.Or(c.PollInterval, 30*time.Second)
	c.DeafPollInterval = cmp.Or(c.DeafPollInterval, min(2*time.Second, c.PollInterval))
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 15*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.claimBytes = cmp.Or(c.claimBytes, maxClaimBytes)
	c.GracePeriod = cmp.Or(c.GracePeriod, 20*time.Second)
	if c.Backoff == nil {
		c.Backoff = Exponential(time.Second, time.Hour)
	}
	if c.Hearing == nil {
		c.Hearing = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// poll returns the time between looks for jobs that nobody has announced.
func (c Config) poll() time.Duration {
	if c.Hearing() {
		return c.PollInterval
	}
	return c.DeafPollInterval
}

func hostname() string {
	host, _ := os.Hostname()
	return cmp.Or(host, "host")
}

func (c Config) validate() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		if fault := engine.NameFault(name); fault != "" {
			errs = append(errs, invalid.Field("Config.Queues", "has a queue whose name %s", fault))
		}
		if n := c.Queues[name].Concurrency; n < 0 || n > 100_000 {
			errs = append(errs, invalid.Field(fmt.Sprintf("Config.Queues[%q].Concurrency", name), "is %d, want 1 to 100000, or 0 for %d", n, defaultConcurrency))
		}
	}
	if fault := engine.WorkerFault(c.Worker); fault != "" {
		errs = append(errs, invalid.Field("Config.Worker", "%s", fault))
	}
	within := func(field string, d, least time.Duration) {
		if d < least || d > engine.MaxDuration {
			errs = append(errs, invalid.Field(field, "is %s, want %s to 100 years", d, least))
		}
	}
	switch c.LogJobs {
	case LogAll, LogFailures, LogNone:
	default:
		errs = append(errs, invalid.Field("Config.LogJobs", "is %q, want all, failures or off, or nothing for all", c.LogJobs))
	}
	within("Config.LeaseTTL", c.LeaseTTL, time.Second)
	within("Config.PollInterval", c.PollInterval, 10*time.Millisecond)
	within("Config.DeafPollInterval", c.DeafPollInterval, 10*time.Millisecond)
	within("Config.Timeout", c.Timeout, time.Millisecond)
	within("Config.GracePeriod", max(c.GracePeriod, 0), 0)
	return errors.Join(errs...)
}
