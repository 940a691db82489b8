package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// page is the result of one look at the log: events at holes first, then newer ones.
type page struct {
	events []Event
	full   bool // more may be available at once
	late   bool // newer ones are left out
	more   bool // there may be more at holes
	// before is the cursor that the page was read from, after the one once all of it is published.
	before, after cursor
}

// logReader reads the log.
type logReader struct {
	pool     *pgxpool.Pool
	timeline string  // the origin of the cursor's positions
	shared   *shared // with other sinks; nil if there are no others
}

// maxPageBytes is the approximate size of a page; a single event may exceed it.
const maxPageBytes = 8 << 20

// maxLook limits the positions at holes that a page looks at, so that it comes in time: when a long transaction ends,
// there may be maxHoles to look at, and to close, in each day of the log. Tests set a lower limit.
var maxLook = 20_000

// read returns the events after c that can be published: up to most from holes and up to most newer ones. With late, it
// returns those from holes only, for a page after one that has left some out: newer ones would be left out again.
//
// It looks at the holes with a snapshot that is newer than that of the newer events, and newer than the one that lists
// the running transactions: see cursor.
//
// It leaves out holes whose transactions are all still running. If one of them has ended before the look at the other
// holes, it may have stored an event of a key at a hole that was left out, and a later one at a hole that was not. Then
// read begins anew.
//
// It reads nothing from another timeline: a failover may have lost positions that the cursor has passed, and events
// that get those positions now would be skipped.
func (l logReader) read(ctx context.Context, c cursor, most int, late bool) (page, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, errSlow)
	defer cancel()
	newer, full, running, err := l.newer(ctx, c, most, late)
	if err != nil {
		return page{}, readFailed(ctx, err)
	}
	found := page{before: c, events: newer, full: full || late, late: late}
	if holes := c.mayBeFilled(running); len(holes) > 0 {
		events, n, err := l.atHoles(ctx, holes, most)
		if err != nil {
			return page{}, readFailed(ctx, err)
		}
		if len(events) > 0 && len(holes) < len(c.holes) {
			_, now, err := l.look(ctx, c, 0)
			if err != nil {
				return page{}, readFailed(ctx, err)
			}
			if len(c.mayBeFilled(now)) > len(holes) {
				return l.read(ctx, c, most, late)
			}
		}
		examined := c.top
		if isFull(events, most) {
			found.more, examined = true, events[len(events)-1].Position
		} else if n < len(holes) {
			found.more, examined = true, holes[n-1].high
		}
		if found.more { // newer ones must not overtake it
			found.events, found.full, found.late = nil, true, true
		}
		found.events = append(events, found.events...)
		c = c.after(positions(events)).looked(running, examined)
	}
	found.after = c.past(found.events)
	if found.more && !found.after.isNumbered() { // otherwise the next page would look at the same holes
		if found.after, err = l.number(ctx, found.after); err != nil {
			return page{}, readFailed(ctx, err)
		}
	}
	return found, nil
}

// errSlow reports that a read did not finish in time.
var errSlow = fmt.Errorf("the page has not come in %s", statementTimeout)

func readFailed(ctx context.Context, err error) error {
	if context.Cause(ctx) == errSlow {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return fmt.Errorf("read the log: %w", err)
}

// newer returns events after the cursor, or none with late, and whether there may be more. If there are holes, it also
// returns the running transactions.
func (l logReader) newer(ctx context.Context, c cursor, most int, late bool) (newer []Event, full bool,
	running snapshot, err error,
) {
	if late || len(c.holes) >= maxHoles {
		_, running, err = l.look(ctx, c, 0)
		return nil, false, running, err
	}
	if l.shared == nil || most != maxBatch {
		newer, running, err = l.look(ctx, c, most)
		return newer, isFull(newer, most), running, err
	}
	looked := false
	newer, full, err = l.shared.newer(ctx, l.timeline, c.top, func() (found []Event, err error) {
		looked = true
		found, running, err = l.look(ctx, c, most)
		return found, err
	})
	if err == nil && !looked && len(c.holes) > 0 {
		_, running, err = l.look(ctx, c, 0)
	}
	return newer, full, running, err
}

// look queries up to most events after the cursor. If there are holes, it then queries the running transactions.
func (l logReader) look(ctx context.Context, c cursor, most int) (newer []Event, running snapshot, err error) {
	var batch pgx.Batch
	batch.Queue("SELECT outbox.timeline()").QueryRow(func(row pgx.Row) error {
		var timeline string
		if err := row.Scan(&timeline); err != nil {
			return err
		}
		if timeline != l.timeline {
			return errTimeline
		}
		return nil
	})
	if most > 0 {
		batch.Queue(sqlgen.EventsAfter, c.top, most, maxPageBytes).Query(func(rows pgx.Rows) (err error) {
			newer, err = events(rows)
			return err
		})
	}
	if len(c.holes) > 0 {
		batch.Queue(sqlgen.RunningTransactions).QueryRow(func(row pgx.Row) error {
			var text string
			if err := row.Scan(&text); err != nil {
				return err
			}
			running, err = parseSnapshot(text)
			return err
		})
	}
	if err := errors.Join(l.pool.SendBatch(ctx, &batch).Close(), err); err != nil {
		return nil, running, err // others would take the events of a failed look, and look again at once, forever
	}
	return newer, running, nil
}

// atHoles returns events that have appeared at holes. One statement has seen all of them, and has looked at all holes
// up to the last of them: with a second one, and so a newer snapshot, a later event of a key could be seen at a higher
// hole, and the one before it not at a lower one.
//
// The statement looks at every hole that it is given, in each day of the log, and sorts what is there. If messages wait
// for a destination, there is an event at each position of the holes. So it is given holes with as many positions as
// fill a page, and more, up to maxLook, only if these do not and took little time: with a hundred days of the log a
// look takes a hundred times as long as with one. atHoles also returns at how many holes it has looked.
func (l logReader) atHoles(ctx context.Context, holes []hole, most int) (late []Event, n int, err error) {
	lows, highs := cursor{holes: holes}.bounds()
	positions := int64(0)
	began := time.Now()
	for n < len(holes) && !isFull(late, most) && positions < int64(maxLook) && time.Since(began) < statementTimeout/10 {
		enough := max(4*positions, int64(most))
		if 2*enough > int64(maxLook) {
			enough = int64(maxLook)
		}
		for ; n < len(holes) && positions < enough; n++ {
			positions += holes[n].high - holes[n].low + 1
		}
		rows, err := l.pool.Query(ctx, sqlgen.EventsAtHoles, lows[:n], highs[:n], most, maxPageBytes)
		if err != nil {
			return nil, 0, err
		}
		late, err = events(rows)
		rows.Close()
		if err != nil {
			return nil, 0, err
		}
	}
	return late, n, nil
}

// isFull reports whether a look ended before it had read everything.
func isFull(found []Event, most int) bool {
	return len(found) >= most || bytesOf(found) >= maxPageBytes
}

// number gives a bound to the holes that have none.
func (l logReader) number(ctx context.Context, c cursor) (cursor, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	xid, err := sqlgen.New(l.pool).NewTransaction(ctx)
	if err != nil {
		return c, fmt.Errorf("number the holes: %w", err)
	}
	return c.numbered(xid), nil
}
