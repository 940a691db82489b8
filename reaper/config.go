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

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Config configures a reaper. Its zero value is a sane production setup.
type Config struct {
	// Keep is how long closed jobs are kept, together with their idempotency keys and results; at least 24 h. 0 means
	// 30 days, and 14 days for those that succeeded. When everything in a day of the history is beyond its retention,
	// the whole day is dropped, unless it is yesterday: up to a day late, or two. Otherwise jobs are deleted row by
	// row, which costs much more.
	Keep time.Duration
	// KeepByStatus replaces Keep for the given statuses, at least 24 h; 0 deletes at the next pass. A status without an
	// entry is kept as without the map. Keep does not apply to the dead letters, Failed and Dead: without an entry here
	// they are removed after 90 days in which nobody dealt with them.
	KeepByStatus map[outbox.Status]time.Duration
	// KeepByQueue replaces both for the jobs of a queue, status by status.
	KeepByQueue map[string]map[outbox.Status]time.Duration
	// KeepEvents is how long events are kept, at least 24 h; 0 means 7 days. They are dropped by the day, like those of
	// the history.
	KeepEvents time.Duration
	// LoseUnread drops days of events that a sink has not finished reading, and counts the lost events. Otherwise such
	// a day stays until the sink has read it.
	LoseUnread bool
	// KeepInbox is how long inbox.Once remembers a message, at least 24 h; 0 means 14 days.
	KeepInbox time.Duration
	// KeepAudit is how long the audit trail is kept, at least 30 days; 0 means 365 days.
	KeepAudit time.Duration

	// Wake receives when jobs were stored, any of which may have a deadline. A receive is a hint; any number may be
	// lost. Nil never wakes. Do not use the channel that a dispatcher receives from.
	Wake <-chan struct{}
	// Listening reports whether Wake is currently reliable. Nil means that it never is. While it is not, the reaper
	// queries for deadlines every 0.8 s.
	Listening func() bool

	HistoryAhead int // days for which the history and the events have partitions ready; 0 means 7
	// DepthInterval is the time between samples of the queues' depth; 0 means 30 s. It grows if a sample takes more
	// than a fiftieth of it.
	DepthInterval time.Duration

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

const (
	day                    = 24 * time.Hour
	defaultKeep            = 30 * day
	defaultKeepSucceeded   = 14 * day
	defaultKeepDeadLetters = 90 * day
	defaultKeepEvents      = 7 * day
	defaultKeepInbox       = 14 * day
	defaultKeepAudit       = 365 * day
	minKeepAudit           = 30 * day // the database refuses less
	defaultAhead           = 7
	maxAhead               = 366
	minKeep                = 24 * time.Hour // how long results are guaranteed
)

func (c Config) withDefaults() Config {
	byStatus := map[outbox.Status]time.Duration{
		outbox.Failed: defaultKeepDeadLetters,
		outbox.Dead:   defaultKeepDeadLetters,
	}
	if c.Keep == 0 {
		byStatus[outbox.Succeeded] = defaultKeepSucceeded
	}
	maps.Copy(byStatus, c.KeepByStatus)
	c.Keep, c.KeepByStatus = cmp.Or(c.Keep, defaultKeep), byStatus
	c.KeepByQueue = maps.Clone(c.KeepByQueue)
	for queue, keeps := range c.KeepByQueue {
		c.KeepByQueue[queue] = maps.Clone(keeps)
	}
	c.KeepEvents = cmp.Or(c.KeepEvents, defaultKeepEvents)
	c.KeepInbox = cmp.Or(c.KeepInbox, defaultKeepInbox)
	c.KeepAudit = cmp.Or(c.KeepAudit, defaultKeepAudit)
	c.HistoryAhead = cmp.Or(c.HistoryAhead, defaultAhead)
	c.DepthInterval = cmp.Or(c.DepthInterval, 30*time.Second)
	if c.Listening == nil {
		c.Listening = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Keep < minKeep {
		errs = append(errs, invalid.Field("Config.Keep", "is %s, want at least 24h, or 0 for %s", c.Keep, defaultKeep))
	}
	if c.KeepEvents < minKeep {
		errs = append(errs, invalid.Field("Config.KeepEvents", "is %s, want at least 24h, or 0 for %s", c.KeepEvents,
			defaultKeepEvents))
	}
	if c.KeepInbox < minKeep {
		errs = append(errs, invalid.Field("Config.KeepInbox", "is %s, want at least 24h, or 0 for %s", c.KeepInbox,
			defaultKeepInbox))
	}
	if c.KeepAudit < minKeepAudit {
		errs = append(errs, invalid.Field("Config.KeepAudit", "is %s, want at least %s, or 0 for %s", c.KeepAudit,
			minKeepAudit, defaultKeepAudit))
	}
	errs = append(errs, validKeeps("Config.KeepByStatus", c.KeepByStatus)...)
	for _, queue := range slices.Sorted(maps.Keys(c.KeepByQueue)) {
		if fault := engine.NameFault(queue); fault != "" {
			errs = append(errs, invalid.Field("Config.KeepByQueue", "has a queue whose name %s", fault))
		}
		errs = append(errs, validKeeps(fmt.Sprintf("Config.KeepByQueue[%s]", queue), c.KeepByQueue[queue])...)
	}
	if c.HistoryAhead < 1 || c.HistoryAhead > maxAhead {
		errs = append(errs, invalid.Field("Config.HistoryAhead", "is %d, want 1 to %d, or 0 for %d", c.HistoryAhead,
			maxAhead, defaultAhead))
	}
	if c.DepthInterval < time.Second {
		errs = append(errs, invalid.Field("Config.DepthInterval", "is %s, want at least 1s, or 0 for 30s",
			c.DepthInterval))
	}
	return errors.Join(errs...)
}

func validKeeps(field string, keeps map[outbox.Status]time.Duration) (errs []error) {
	for _, status := range slices.Sorted(maps.Keys(keeps)) {
		if !status.Closed() && !isDeadLetter(status) {
			errs = append(errs, invalid.Field(field, "has %q, want only outcomes: %v, failed, dead", status,
				closedStatuses()))
		} else if keep := keeps[status]; keep != 0 && keep < minKeep {
			errs = append(errs, invalid.Field(fmt.Sprintf("%s[%s]", field, status),
				"is %s, want at least 24h, or 0 to keep none", keep))
		}
	}
	return errs
}

func isDeadLetter(s outbox.Status) bool { return s == outbox.Failed || s == outbox.Dead }

// retention returns how long a status is kept in queues without a retention of their own.
func (c Config) retention(status outbox.Status) time.Duration {
	if keep, ok := c.KeepByStatus[status]; ok {
		return keep
	}
	return c.Keep
}

// longestRetention returns the longest retention of any closed jobs.
func (c Config) longestRetention() time.Duration {
	var longest time.Duration
	for _, status := range closedStatuses() {
		longest = max(longest, c.retention(status))
		for _, keeps := range c.KeepByQueue {
			longest = max(longest, keeps[status])
		}
	}
	return longest
}

func closedStatuses() []outbox.Status {
	return slices.DeleteFunc(engine.Statuses[outbox.Status](), func(s outbox.Status) bool { return !s.Closed() })
}
