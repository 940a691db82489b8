package relay

import (
	"context"
	"encoding/json"
	"errors"
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

	fault  error  // why no message can be made of it
	replay string // the replay that publishes it again; "" if none does
	again  bool   // under a new id
	made   *envelopes
}

// page is what one look at the log has found: events at holes first, then newer ones.
type page struct {
	events []Event
	full   bool // there may be more at once
	// before is the cursor that it was read from, and after the one once all of it is published.
	before, after cursor
}

// log reads the log.
type log struct {
	pool     *pgxpool.Pool
	timeline string  // where the cursor's positions come from
	shared   *shared // with other sinks; nil if there is none
}

// maxPageBytes is about how much a page holds, besides one event.
const maxPageBytes = 8 << 20

// read returns what can be published from c on, at most as many events from holes and as
// many newer ones.
//
// The holes are looked at with a snapshot that is newer than the one of the newer events,
// and than the one that says which transactions run: see cursor.
//
// From another timeline nothing is read: a failover may have lost positions that the cursor
// has passed, and what is given out there now would be skipped.
func (l log) read(ctx context.Context, c cursor, most int) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	newer, full, running, err := l.newer(ctx, c, most)
	if err != nil {
		return page{}, fmt.Errorf("read the log: %w", err)
	}
	found := page{before: c, events: newer, full: full}
	if holes := c.mayBeFilled(running); len(holes) > 0 {
		late, err := l.atHoles(ctx, holes, most)
		if err != nil {
			return page{}, fmt.Errorf("read the log: %w", err)
		}
		examined := c.top
		if isFull(late, most) { // there may be more at holes, which newer ones must not overtake
			found.events, found.full, examined = nil, true, late[len(late)-1].Position
		}
		found.events = append(late, found.events...)
		c = c.after(positions(late)).looked(running, examined)
	}
	found.after = c.after(positions(found.events))
	return found, nil
}

// newer returns events behind the cursor and whether there may be more, and which transactions run, if there are holes.
func (l log) newer(ctx context.Context, c cursor, most int) (newer []Event, full bool, running snapshot, err error) {
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

// look asks for at most so many events behind the cursor, and after that which transactions run, if there are holes.
func (l log) look(ctx context.Context, c cursor, most int) (newer []Event, running snapshot, err error) {
	var batch pgx.Batch
	batch.Queue("SELECT outbox.timeline()").QueryRow(func(row pgx.Row) error {
		var timeline string
		if err := row.Scan(&timeline); err != nil {
			return err
		}
		if timeline != l.timeline {
			return errNotOurs
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
	return newer, running, errors.Join(l.pool.SendBatch(ctx, &batch).Close(), err)
}

// atHoles returns events that have come to holes.
func (l log) atHoles(ctx context.Context, holes []hole, most int) ([]Event, error) {
	lows, highs := cursor{holes: holes}.bounds()
	rows, err := l.pool.Query(ctx, sqlgen.EventsAtHoles, lows, highs, most, maxPageBytes)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return events(rows)
}

// isFull reports whether a look has ended before it had read everything.
func isFull(found []Event, most int) bool {
	n := 0
	for i := range found {
		n += len(found[i].Payload)
	}
	return len(found) >= most || n >= maxPageBytes
}

func positions(of []Event) []int64 {
	all := make([]int64, len(of))
	for i := range of {
		all[i] = of[i].Position
	}
	return all
}

// number gives a bound to the holes that have none.
func (l log) number(ctx context.Context, c cursor) (cursor, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	xid, err := sqlgen.New(l.pool).NewTransaction(ctx)
	if err != nil {
		return c, fmt.Errorf("number the holes: %w", err)
	}
	return c.numbered(xid), nil
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
				e.fault = fmt.Errorf("its headers are no texts: %w", err)
			}
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
