package reaper

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Config is how a reaper works. Its zero value is a sane production setup.
type Config struct {
	// Keep is how long closed jobs are kept, and with them their attempts and
	// idempotency keys; 0 is 14 days. A whole day of the history is dropped at
	// once, when all of it is beyond the longest retention and it is not yesterday:
	// up to a day late, or two.
	Keep time.Duration
	// KeepByStatus replaces Keep for the given outcomes. One that is kept for less
	// time than another is deleted row by row, which costs much more than to drop
	// days; 0 deletes at the next pass. Attempts and keys are kept as long as the
	// longest.
	KeepByStatus map[outbox.Status]time.Duration
	// KeepInbox is how long inbox.Once remembers a message; 0 is 14 days.
	KeepInbox time.Duration

	HistoryAhead  int           // days for which the history has partitions ready; 0 is 7
	DepthInterval time.Duration // between samples of the queues' depth; 0 is 30 s. Longer if a sample takes more than a fiftieth of it

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

const (
	defaultKeep  = 14 * 24 * time.Hour
	defaultAhead = 7
	maxAhead     = 366
)

func (c Config) withDefaults() Config {
	c.Keep = cmp.Or(c.Keep, defaultKeep)
	c.KeepByStatus = maps.Clone(c.KeepByStatus)
	c.KeepInbox = cmp.Or(c.KeepInbox, defaultKeep)
	c.HistoryAhead = cmp.Or(c.HistoryAhead, defaultAhead)
	c.DepthInterval = cmp.Or(c.DepthInterval, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	positive := func(field string, d time.Duration) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %s, want more than 0, or 0 for %s", field, d, defaultKeep))
		}
	}
	positive("Keep", c.Keep)
	positive("KeepInbox", c.KeepInbox)
	for _, status := range slices.Sorted(maps.Keys(c.KeepByStatus)) {
		if !status.Closed() {
			errs = append(errs, fmt.Errorf("KeepByStatus has %q, want only statuses of closed jobs: %v", status, closedStatuses()))
		}
		if keep := c.KeepByStatus[status]; keep < 0 {
			errs = append(errs, fmt.Errorf("KeepByStatus[%s] is %s, want at least 0", status, keep))
		}
	}
	if c.HistoryAhead < 1 || c.HistoryAhead > maxAhead {
		errs = append(errs, fmt.Errorf("HistoryAhead is %d, want 1 to %d, or 0 for %d", c.HistoryAhead, maxAhead, defaultAhead))
	}
	if c.DepthInterval < time.Second {
		errs = append(errs, fmt.Errorf("DepthInterval is %s, want at least 1s, or 0 for 30s", c.DepthInterval))
	}
	return errors.Join(errs...)
}

// retention is how long an outcome is kept.
func (c Config) retention(status outbox.Status) time.Duration {
	if keep, ok := c.KeepByStatus[status]; ok {
		return keep
	}
	return c.Keep
}

// longestRetention is that of the outcome that is kept longest.
func (c Config) longestRetention() time.Duration {
	var longest time.Duration
	for _, status := range closedStatuses() {
		longest = max(longest, c.retention(status))
	}
	return longest
}

func closedStatuses() []outbox.Status {
	return slices.DeleteFunc(outbox.Statuses(), func(s outbox.Status) bool { return !s.Closed() })
}
