package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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
	Key         string // "": in no order
	ContentType string
	Payload     []byte
	Headers     map[string]string
}

// page is what one look at the log has found: events at holes first, then newer ones.
type page struct {
	events []Event
	full   bool // there may be more at once
	// before is the cursor that it was read from, and after the one once all of it is published.
	before, after cursor
}

// log reads the log.
type log struct{ pool *pgxpool.Pool }

// maxPageBytes is about how much a page holds, besides one event.
const maxPageBytes = 8 << 20

// read returns what can be published from c on, at most as many events from holes and as
// many newer ones.
//
// The holes are looked at with a snapshot that is newer than the one of the newer events,
// and than the one that says which transactions have ended: see cursor. All three go in one
// round trip.
func (l log) read(ctx context.Context, c cursor, most int) (page, error) {
	var batch pgx.Batch
	found := page{before: c}
	var newer, late []Event
	var oldest int64
	batch.Queue(sqlgen.EventsAfter, c.top, most, maxPageBytes).Query(func(rows pgx.Rows) (err error) {
		newer, err = events(rows)
		return err
	})
	if len(c.holes) > 0 {
		lows, highs := c.bounds()
		batch.Queue(sqlgen.OldestRunning).QueryRow(func(row pgx.Row) error { return row.Scan(&oldest) })
		batch.Queue(sqlgen.EventsAtHoles, lows, highs, most, maxPageBytes).Query(func(rows pgx.Rows) (err error) {
			late, err = events(rows)
			return err
		})
	}
	if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return page{}, fmt.Errorf("read the log: %w", err)
	}
	found.events = newer
	examined := c.top
	if len(late) > 0 {
		if size(late) >= maxPageBytes || len(late) >= most {
			// There may be more at holes, which newer ones must not overtake.
			newer, examined, found.full = nil, late[len(late)-1].Position, true
		}
		found.events = append(late, newer...)
	}
	found.full = found.full || len(newer) >= most || size(newer) >= maxPageBytes
	positions := make([]int64, len(found.events))
	for i := range found.events {
		positions[i] = found.events[i].Position
	}
	found.after = c.after(positions)
	if oldest != 0 {
		found.after = found.after.closed(oldest, examined)
	}
	return found, nil
}

// number gives a bound to the holes that have none.
func (l log) number(ctx context.Context, c cursor) (cursor, error) {
	xid, err := sqlgen.New(l.pool).NewTransaction(ctx)
	if err != nil {
		return c, fmt.Errorf("number the holes: %w", err)
	}
	return c.numbered(xid), nil
}

func size(events []Event) (n int) {
	for i := range events {
		n += len(events[i].Payload)
	}
	return n
}

// events reads rows of the log.
func events(rows pgx.Rows) ([]Event, error) {
	var all []Event
	for rows.Next() {
		var e Event
		var id, tenant [16]byte
		var key *string
		var headers []byte
		if err := rows.Scan(&e.Position, &e.At, &id, &tenant, &e.Topic, &key, &e.ContentType, &e.Payload, &headers); err != nil {
			return nil, err
		}
		e.ID, e.Tenant = id, tenant
		if key != nil {
			e.Key = *key
		}
		if headers != nil {
			if err := json.Unmarshal(headers, &e.Headers); err != nil {
				return nil, fmt.Errorf("headers of event %s: %w", e.ID, err)
			}
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
