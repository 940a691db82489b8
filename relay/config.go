package relay

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// Config sets what a relay publishes, and how.
type Config struct {
	Sinks []SinkConfig

	// Source is the CloudEvents attribute that names the origin of the events, a URI reference; "" means "posthaste".
	// Two databases that publish to one place need two sources.
	Source string
	// LeaseTTL is how long after its owner's last sign of life a sink is taken over; 0 means 5 s. At least 1 s, and
	// at most 5 min.
	LeaseTTL time.Duration
	// FailoverRewind is how far back a sink goes when positions come from a different timeline than before and the
	// event published last no longer exists. Events published within this time before the failover, or up to twice of
	// it, are published again, with the same ids; 0 means 5 min. A switchover without loss repeats nothing.
	FailoverRewind time.Duration
	// MaxHeld limits the open jobs of a sink: messages that it has refused, later messages of the same keys, and dead
	// letters. Beyond it the sink stops; 0 means 10 000.
	MaxHeld int
	// PollInterval is the time between polls of the log while Wake is reliable; 0 means 5 s. While it is not, the
	// interval is 100 ms.
	PollInterval time.Duration

	// Wake receives when events were stored. A receive is a hint; any number may be lost. Nil never wakes.
	Wake <-chan struct{}
	// Listening reports whether Wake is currently reliable. Nil means that it never is.
	Listening func() bool

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere

	now      func() time.Time // nil means time.Now
	patience time.Duration    // after which a batch without an answer is unknown; 0 means publishTimeout
	// renewInterval is the longest time between two renewals of a lease; 0 means a third of LeaseTTL, and
	// maxRenewInterval at most.
	renewInterval time.Duration
	// outage is the waits between trials of an unavailable sink; the zero value means about 1 s, 2 s, 4 s … 30 s.
	outage backoff.Backoff
}

// SinkConfig is a sink with its name and routes. The name identifies the cursor: under a new name the sink begins where
// Begin says. It has 1 to 122 letters, digits and _ . : / -, because the sink's jobs have the kind relay:NAME.
type SinkConfig struct {
	Name    string
	Sink    Sink
	Routes  []Route
	Begin   Begin // "" means BeginOldest
	MaxHeld int   // 0 means that of [Config]
}

// Begin sets where a new sink begins in the log. It applies when the row of the sink is created: when the first relay
// that has the sink runs, and again after "posthaste relay remove". From then on it has no effect: the sink continues
// where it was, however long no relay has run.
type Begin string

const (
	// BeginOldest begins with the oldest event that is kept.
	BeginOldest Begin = "oldest"
	// BeginNow skips the events that are committed when the row is created. Events of transactions that commit later
	// are published, even if they were stored before, provided that they are among the last ten thousand positions of
	// the log then. "posthaste relay seek --to-end" does the same.
	BeginNow Begin = "now"
)

// Validate returns an [*outbox.InvalidError] for a value that is none of the constants and not "".
func (b Begin) Validate() error {
	switch b {
	case "", BeginOldest, BeginNow:
		return nil
	}
	return invalid.Field("Begin", "is %q, want oldest or now", string(b))
}

const (
	defaultSource         = "posthaste"
	defaultLeaseTTL       = 5 * time.Second
	maxRenewInterval      = defaultLeaseTTL / 3 // an owner learns that its sink was paused when it renews its lease
	maxLeaseTTL           = 5 * time.Minute     // a lease that ends much later counts as lapsed: internal/jobcolumns
	defaultPollInterval   = 5 * time.Second
	fallbackPollInterval  = 100 * time.Millisecond
	defaultFailoverRewind = 5 * time.Minute
	defaultMaxHeld        = 10_000
)

func (c Config) withDefaults() Config {
	c.Sinks = slices.Clone(c.Sinks)
	c.Source = cmp.Or(c.Source, defaultSource)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, defaultLeaseTTL)
	c.renewInterval = cmp.Or(c.renewInterval, min(c.LeaseTTL/3, maxRenewInterval))
	c.patience = cmp.Or(c.patience, publishTimeout)
	c.FailoverRewind = cmp.Or(c.FailoverRewind, defaultFailoverRewind)
	c.MaxHeld = cmp.Or(c.MaxHeld, defaultMaxHeld)
	c.PollInterval = cmp.Or(c.PollInterval, defaultPollInterval)
	if c.Listening == nil {
		c.Listening = func() bool { return false }
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.outage.Min, c.outage.Max = cmp.Or(c.outage.Min, time.Second), cmp.Or(c.outage.Max, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// CheckName returns an [*outbox.InvalidError] if the name is not valid for a sink.
func CheckName(sink string) error {
	if sink == "" {
		return invalid.Field("Sinks", "has one without a name")
	}
	if fault := engine.NameFault(engine.HeldKind(sink)); fault != "" {
		return invalid.Field("Sinks", "has %q, whose jobs would have a kind that %s", sink, fault)
	}
	return nil
}

func (c Config) validate() error {
	var errs []error
	if len(c.Sinks) == 0 {
		errs = append(errs, invalid.Field("Sinks", "is empty: there is nothing to publish to"))
	}
	names := map[string]bool{}
	for _, s := range c.Sinks {
		switch {
		case CheckName(s.Name) != nil:
			errs = append(errs, CheckName(s.Name))
		case names[s.Name]:
			errs = append(errs, invalid.Field("Sinks", "has two that are called %q", s.Name))
		case s.Sink == nil:
			errs = append(errs, invalid.Field("Sinks", "sink %q is nil", s.Name))
		}
		names[s.Name] = true
		if err := s.Begin.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("sink %q: %w", s.Name, err))
		}
		if s.MaxHeld < 0 {
			errs = append(errs, invalid.Field("MaxHeld",
				"of sink %q is %d, want at least 1, or 0 for that of all sinks", s.Name, s.MaxHeld))
		}
		if _, err := compileAll(s.Routes); err != nil {
			errs = append(errs, fmt.Errorf("sink %q: %w", s.Name, err))
		}
		for _, r := range s.Routes {
			if c, ok := s.Sink.(RouteChecker); ok && c.CheckRoute(r) != nil {
				errs = append(errs, fmt.Errorf("sink %q: %w", s.Name, c.CheckRoute(r)))
			}
		}
	}
	if c.MaxHeld < 1 {
		errs = append(errs, invalid.Field("MaxHeld", "is %d, want at least 1, or 0 for %d", c.MaxHeld, defaultMaxHeld))
	}
	for _, d := range []struct {
		field string
		got   time.Duration
		least time.Duration
	}{
		{"LeaseTTL", c.LeaseTTL, time.Second},
		{"FailoverRewind", c.FailoverRewind, 0},
		{"PollInterval", c.PollInterval, time.Millisecond},
	} {
		if d.got < d.least {
			errs = append(errs, invalid.Field(d.field, "is %v, want at least %v", d.got, d.least))
		}
	}
	if c.LeaseTTL > maxLeaseTTL {
		errs = append(errs, invalid.Field("LeaseTTL", "is %v, want %v at most", c.LeaseTTL, maxLeaseTTL))
	}
	return errors.Join(errs...)
}
