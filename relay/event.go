package relay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Event is a row of the log.
type Event struct {
	Position    int64     // in the log; events may share one
	At          time.Time // when it was stored, by the database's clock
	ID          outbox.ID // the same in every attempt
	Tenant      outbox.ID // owner of the event; [outbox.RootTenant] if the producer named none
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
