package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const countPositions = 200_000 // positions whose events one statement counts

// An eventTrimmer drops days of events.
type eventTrimmer struct {
	batches batches
	days    days
	config  Config
	metrics *metrics
	log     *slog.Logger
}

// trim drops the days of events that are beyond their retention. If a sink has not read such a day, Config.LoseUnread
// decides whether it stays or is lost for that sink.
func (t eventTrimmer) trim(ctx context.Context) (time.Duration, error) {
	var days []sqlgen.ListEventDaysRow
	err := t.batches.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		days, err = q.ListEventDays(ctx, pgvalue.Interval(t.config.KeepEvents))
		return err
	})
	if pgsession.State(err) == pgsession.UndefinedTable { // another reaper dropped a day meanwhile
		return backoff.Jitter(dropInterval), nil
	}
	if err != nil {
		return 0, fmt.Errorf("list the days of the events: %w", err)
	}
	wait, held := backoff.Jitter(trimInterval), 0
	inUse := false // as in historyTrimmer.trim
	for _, day := range days {
		if inUse && day.LastPosition == 0 {
			continue
		}
		if len(day.Sinks) > 0 && !t.config.LoseUnread {
			held++
			t.log.LogAttrs(ctx, slog.LevelWarn, "a day of events is kept beyond its retention: sinks, or replays to them, have not read it",
				slog.String("partition", day.Name), slog.String("sinks", strings.Join(day.Sinks, ", ")))
			continue
		}
		unread := map[string]int64{}
		for _, sink := range day.Sinks {
			if unread[sink], err = t.countUnread(ctx, day, sink); err != nil {
				return 0, err
			}
		}
		became, err := t.drop(ctx, day, unread)
		if err != nil {
			return 0, err
		}
		if became == kept {
			wait = backoff.Jitter(dropInterval)
		}
		inUse = inUse || became == emptied
	}
	t.metrics.eventDaysHeld.Set(float64(held))
	return wait, nil
}

// drop drops a day and reports what is lost: unread is how many of its events each sink had not read when they were
// counted. Counting takes a while, and the sinks read on meanwhile. If they have read everything by now, nothing is
// lost. Otherwise a sink may have read some of the events that count as lost: to count them exactly, drop would have to
// keep every sink from reading the log meanwhile.
func (t eventTrimmer) drop(ctx context.Context, day sqlgen.ListEventDaysRow,
	unread map[string]int64,
) (became outcome, err error) {
	became, err = t.days.drop(ctx, day.Name, false)
	if err != nil || became != kept || len(unread) == 0 {
		return became, err
	}
	became, err = t.days.drop(ctx, day.Name, true)
	if err != nil || became == kept {
		return became, err
	}
	for sink, lost := range unread {
		if lost == 0 { // it has read them since the days were listed
			continue
		}
		t.metrics.eventsLost.WithLabelValues(sink).Add(float64(lost))
		t.log.LogAttrs(ctx, slog.LevelError, "events are lost: the sink had not read them within their retention",
			slog.String("sink", sink), slog.String("partition", day.Name), slog.Int64("events", lost))
	}
	return became, nil
}

// countUnread returns how many events of a day a sink has not read.
func (t eventTrimmer) countUnread(ctx context.Context, day sqlgen.ListEventDaysRow,
	sink string,
) (unread int64, err error) {
	params := sqlgen.CountUnreadParams{
		Sink: sink, FirstInstant: day.FirstInstant, EndInstant: day.EndInstant, After: day.FirstPosition - 1,
	}
	for ; params.After < day.LastPosition; params.After = params.Until {
		params.Until = min(params.After+countPositions, day.LastPosition)
		err := t.batches.one(ctx, "events", func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
			n, err := q.CountUnread(ctx, params)
			unread += n
			return 0, err
		})
		if err != nil {
			return 0, err
		}
	}
	return unread, nil
}
