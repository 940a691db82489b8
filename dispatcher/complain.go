package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// complaints keeps an outage out of the log: what fails again and again is told
// once in complainEvery, with how often it failed meanwhile.
type complaints struct {
	mu   sync.Mutex
	told map[string]*complaint
}

type complaint struct {
	at     time.Time
	missed int
}

const complainEvery = 5 * time.Second

// complain warns of an error that the database is to blame for. Errors of another
// SQLSTATE are another complaint.
func (d *Dispatcher) complain(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	missed, due := d.complaints.due(message+sqlstate(err), time.Now())
	if !due {
		return
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("failed_since_last_told", missed))
	}
	d.log.LogAttrs(ctx, slog.LevelWarn, message, append(attrs, slog.Any("err", err))...)
}

func (c *complaints) due(what string, now time.Time) (missed int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = map[string]*complaint{}
	}
	last := c.told[what]
	if last != nil && now.Sub(last.at) < complainEvery {
		last.missed++
		return 0, false
	}
	if last != nil {
		missed = last.missed
	}
	c.told[what] = &complaint{at: now}
	return missed, true
}
