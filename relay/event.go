package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Event is a row of the log.
type Event struct {
	Position    int64
	At          time.Time
	ID          outbox.ID
	Tenant      outbox.ID
	Topic       string
	Key         string // "" means in no order
	ContentType string
	Payload     []byte
	Headers     map[string]string

	bytes  int    // what it counts for in a page: its payload and headers
	fault  error  // why no message can be made from it
	replay string // the replay that publishes it again; "" if none does
	again  bool   // under a new id
	made   *envelopes
}

// page is the result of one look at the log: events at holes first, then newer ones.
type page struct {
	events []Event
	full   bool // more may be available at once
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

// read returns the events after c that can be published: up to most from holes and up to most newer ones.
//
// It looks at the holes with a snapshot that is newer than that of the newer events, and newer than the one that lists
// the running transactions: see cursor.
//
// It reads nothing from another timeline: a failover may have lost positions that the cursor has passed, and events
// that get those positions now would be skipped.
func (l logReader) read(ctx context.Context, c cursor, most int) (page, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, errSlow)
	defer cancel()
	newer, full, running, err := l.newer(ctx, c, most)
	if err != nil {
		return page{}, readFailed(ctx, err)
	}
	found := page{before: c, events: newer, full: full}
	if holes := c.mayBeFilled(running); len(holes) > 0 {
		late, err := l.atHoles(ctx, holes, most)
		if err != nil {
			return page{}, readFailed(ctx, err)
		}
		examined := c.top
		if isFull(late, most) { // holes may have more, which newer ones must not overtake
			found.events, found.full, examined = nil, true, late[len(late)-1].Position
		}
		found.events = append(late, found.events...)
		c = c.after(positions(late)).looked(running, examined)
	}
	found.after = c.past(found.events)
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

// newer returns events after the cursor and whether there may be more. If there are holes, it also returns the running
// transactions.
func (l logReader) newer(ctx context.Context, c cursor,
	most int,
) (newer []Event, full bool, running snapshot, err error) {
	if len(c.holes) >= maxHoles {
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

// atHoles returns events that have appeared at holes.
func (l logReader) atHoles(ctx context.Context, holes []hole, most int) ([]Event, error) {
	lows, highs := cursor{holes: holes}.bounds()
	rows, err := l.pool.Query(ctx, sqlgen.EventsAtHoles, lows, highs, most, maxPageBytes)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return events(rows)
}

// isFull reports whether a look ended before it had read everything.
func isFull(found []Event, most int) bool {
	return len(found) >= most || bytesOf(found) >= maxPageBytes
}

// bytesOf returns what events count for in a page. It counts as the statement that cuts the page does.
func bytesOf(events []Event) (n int) {
	for i := range events {
		n += events[i].bytes
	}
	return n
}

func positions(of []Event) []int64 {
	all := make([]int64, len(of))
	for i := range of {
		all[i] = of[i].Position
	}
	return all
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

// events reads rows of the log.
func events(rows pgx.Rows) (all []Event, err error) {
	for rows.Next() {
		if len(all) == cap(all) && len(all) >= 32 { // there will be a full page
			all = slices.Grow(all, maxBatch)
		}
		var e Event
		var id, tenant [16]byte
		var key *string
		var headers []byte
		if err := rows.Scan(&e.Position, &e.At, &id, &tenant, &e.Topic, &key, &e.ContentType, &e.Payload, &headers,
			&e.bytes); err != nil {
			return nil, err
		}
		e.ID, e.Tenant = id, tenant
		if key != nil {
			e.Key = *key
		}
		if headers != nil {
			if e.Headers, err = parseHeaders(headers); err != nil {
				e.fault = fmt.Errorf("a header is not a string: %w", err)
			}
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// parseHeaders parses a JSON object of strings. Most contain neither escapes nor anything else special, and are parsed
// without a decoder, which would take a third of the time that an event takes.
func parseHeaders(object []byte) (headers map[string]string, err error) {
	if headers, ok := parsePlain(string(object)); ok {
		return headers, nil
	}
	err = json.Unmarshal(object, &headers)
	return headers, err
}

// parsePlain parses an object in the form in which jsonb is printed, {"a": "b", "c": "d"}, if nothing in it is escaped.
func parsePlain(object string) (headers map[string]string, ok bool) {
	rest, opened := strings.CutPrefix(object, "{")
	rest, closed := strings.CutSuffix(rest, `"}`)
	if !opened || !closed || strings.Contains(rest, `\`) || !utf8.ValidString(rest) {
		return nil, false
	}
	headers = make(map[string]string, 1)
	for more := true; more; {
		var pair, name, value string
		pair, rest, more = strings.Cut(rest, `", `)
		name, value, ok = strings.Cut(pair, `": "`)
		if !ok || len(name) == 0 || name[0] != '"' || strings.Contains(name[1:], `"`) || strings.Contains(value, `"`) {
			return nil, false
		}
		headers[name[1:]] = value
	}
	return headers, true
}
