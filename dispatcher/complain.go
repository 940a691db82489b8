package dispatcher

import (
	"context"
	"log/slog"
	"time"
)

// complain warns of an error that the database is to blame for, not more often
// than an outage deserves.
func (d *Dispatcher) complain(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	missed, due := d.complaints.Due(message, time.Now())
	if !due {
		return
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("failed_since_last_told", missed))
	}
	d.log.LogAttrs(ctx, slog.LevelWarn, message, append(attrs, slog.Any("err", err))...)
}
