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

// Config is what a relay publishes, and how.
type Config struct {
	Sinks []SinkConfig

	// Source is the attribute of CloudEvents that says whose events these are, a URI
	// reference; "" is "posthaste". Two databases that publish to one place have two.
	Source string
	// LeaseTTL is how long after its owner's last word a sink is taken over; 0 is 5 s. At
	// least 1 s, and 5 min at most.
	LeaseTTL time.Duration
	// FailoverRewind is how far back a sink begins when positions come from another timeline
	// than before, and the event that was published last is not there any more: what was
	// published within this time before the failover, and up to twice of it, is published again,
	// with the same ids; 0 is 5 min. A switchover that loses nothing repeats nothing.
	FailoverRewind time.Duration
	// MaxHeld is how many open jobs of a sink there may be: messages that it has refused, those
	// behind them of the same key, and dead letters. Beyond it the sink stands still; 0 is 10,000.
	MaxHeld int
	// PollInterval is the time between looks at the log while Wake can be relied on; 0 is
	// 5 s. While it cannot, it is 100 ms.
	PollInterval time.Duration

	// Wake says that events were stored. A receive is a hint; any number may be lost, and
	// nil is never.
	Wake <-chan struct{}
	// Hearing reports whether Wake is currently reliable. Nil means it never is.
	Hearing func() bool

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere

	now      func() time.Time // nil is time.Now
	beat     time.Duration    // in which an owner says at least once that it lives; 0 is a third of LeaseTTL
	patience time.Duration    // after which a batch without an answer is unknown; 0 is publishTimeout
	// outage is the waits between trials of a sink that is away; the zero value is about 1 s, 2 s, 4 s … 30 s.
	outage backoff.Backoff
}

// SinkConfig is a sink with its name and routes. The name is that of the cursor: under
// another name it begins with the oldest event that is kept. It has 1 to 122 letters, digits
// and _ . : / -, because jobs have the kind relay:NAME.
type SinkConfig struct {
	Name    string
	Sink    Sink
	Routes  []Route
	MaxHeld int // 0 is that of [Config]
}

const (
	defaultSource         = "posthaste"
	defaultLeaseTTL       = 5 * time.Second
	maxLeaseTTL           = 5 * time.Minute // a lease that ends much later counts as lapsed: internal/jobcolumns
	defaultPollInterval   = 5 * time.Second
	deafPollInterval      = 100 * time.Millisecond
	defaultFailoverRewind = 5 * time.Minute
	defaultMaxHeld        = 10_000
)

func (c Config) withDefaults() Config {
	c.Sinks = slices.Clone(c.Sinks)
	c.Source = cmp.Or(c.Source, defaultSource)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, defaultLeaseTTL)
	c.beat = cmp.Or(c.beat, c.LeaseTTL/3)
	c.patience = cmp.Or(c.patience, publishTimeout)
	c.FailoverRewind = cmp.Or(c.FailoverRewind, defaultFailoverRewind)
	c.MaxHeld = cmp.Or(c.MaxHeld, defaultMaxHeld)
	c.PollInterval = cmp.Or(c.PollInterval, defaultPollInterval)
	if c.Hearing == nil {
		c.Hearing = func() bool { return false }
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

// CheckName returns an [*outbox.InvalidError] if no sink may have the name.
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
		if s.MaxHeld < 0 {
			errs = append(errs, invalid.Field("MaxHeld", "of sink %q is %d, want at least 1, or 0 for that of all sinks", s.Name, s.MaxHeld))
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
