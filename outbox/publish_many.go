package outbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// PublishRequest is one event of [PublishMany].
type PublishRequest struct {
	Event   Event
	Options EventOptions
}

// PublishMany stores any number of events, all or none, and returns their ids in the order of the requests, which is
// their order in the log. If a request is not acceptable, a [*RequestError] names the first such one, and nothing is
// sent.
//
// PublishMany takes one round trip for every 5 000 events or 16 MiB (INSERT). From 2 000 events on, it takes a single
// one for all of them (COPY) if db is of pgx and row-level security does not apply to the role. Requests with Serial
// take one more: their locks are acquired first, in an order that all calls share.
//
// In a transaction of pgx, or one begun by a BEGIN on its connection, PublishMany uses a savepoint: after an error the
// transaction is still usable.
func PublishMany(ctx context.Context, db DB, requests []PublishRequest) (ids []ID, err error) {
	notify := notifiesAtCommit(db, eventsChannel)
	if t := engine.Tracing(); t != nil && len(requests) > 0 {
		requests = slices.Clone(requests)
		options := make([]*EventOptions, len(requests))
		for i := range requests {
			options[i] = &requests[i].Options
		}
		var span engine.Span
		ctx, span = tracePublish(ctx, t, commonTopic(requests), options...)
		defer func() { endTrace(span, ID{}, err) }()
	}
	return storeEvents(ctx, db, requests, notify)
}

// commonTopic returns the topic that all events share, or "".
func commonTopic(requests []PublishRequest) (topic string) {
	for i, r := range requests {
		if r.Event == nil || i > 0 && r.Event.Topic() != topic {
			return ""
		}
		topic = r.Event.Topic()
	}
	return topic
}

func storeEvents(ctx context.Context, db DB, requests []PublishRequest, notify bool) ([]ID, error) {
	rows, ids, newID := make([]eventRow, len(requests)), make([]ID, len(requests)), newIDRun().next
	for i := range requests {
		var err error
		if rows[i], err = newEvent(ctx, newID, requests[i].Event, &requests[i].Options); err != nil {
			return nil, &RequestError{Index: i, Err: err}
		}
		ids[i] = ID(rows[i].ID.Bytes)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	if _, ok := db.(copier); ok && len(rows) >= copyFrom {
		channel := ""
		if notify {
			channel = engine.EventsChannel
		}
		err := atomically(ctx, db, channel, func(db DB) error { return copyEvents(ctx, db, requests, rows) })
		if err == nil {
			return ids, nil
		} else if !isCopyRefused(err) {
			return nil, notPublished(rows, err)
		} // the savepoint or transaction of this attempt is gone
	}
	var err error
	insert := func(db DB) error { return insertEvents(ctx, db, requests, rows, notify) }
	serial := func(r PublishRequest) bool { return r.Options.Serial }
	if outsideTx(db) && eventChunk(rows) == len(rows) && !slices.ContainsFunc(requests, serial) {
		err = insert(db) // one statement needs no transaction around it
	} else {
		err = atomically(ctx, db, "", insert)
	}
	if err != nil {
		return nil, notPublished(rows, err)
	}
	return ids, nil
}

func notPublished(rows []eventRow, err error) error {
	return fmt.Errorf("publish %d events: %w", len(rows), explain(err))
}

// holdKeys takes the locks of the Serial requests, before their rows get positions.
func holdKeys(ctx context.Context, db DB, requests []PublishRequest, rows []eventRow) error {
	var tenants []pgtype.UUID
	var keys []string
	for i := range requests {
		if requests[i].Options.Serial {
			tenants, keys = append(tenants, rows[i].TenantID), append(keys, *rows[i].Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return sqlgen.New(db).HoldEventKeys(ctx, tenants, keys)
}

func insertEvents(ctx context.Context, db DB, requests []PublishRequest, rows []eventRow, notify bool) error {
	if err := holdKeys(ctx, db, requests, rows); err != nil {
		return err
	}
	for len(rows) > 0 {
		n := eventChunk(rows)
		p := eventArrays(rows[:n])
		p.Notify = notify
		if err := sqlgen.New(db).PublishEvents(ctx, p); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// eventChunk returns how many of the rows go into one statement.
func eventChunk(rows []eventRow) (n int) {
	for total := 0; n < min(len(rows), chunkSize); n++ {
		if total += len(rows[n].Payload) + len(pgvalue.OrZero(rows[n].Headers)); total > chunkBytes && n > 0 {
			break
		}
	}
	return n
}

// eventArrays returns the rows as one array per column, nil (NULL) for a column that every row leaves at its default.
func eventArrays(rows []eventRow) (p sqlgen.PublishEventsParams) {
	var tenants, keys, types, headers bool
	for i := range rows {
		r := &rows[i]
		tenants = tenants || r.TenantID.Bytes != RootTenant
		keys = keys || r.Key != nil
		types = types || r.ContentType != contentJSON
		headers = headers || r.Headers != nil
	}
	for i := range rows {
		r := &rows[i]
		p.Ids, p.Topics, p.Payloads = append(p.Ids, r.ID), append(p.Topics, r.Topic), append(p.Payloads, r.Payload)
		if tenants {
			p.TenantIds = append(p.TenantIds, r.TenantID)
		}
		if keys {
			p.Keys = append(p.Keys, pgvalue.OrZero(r.Key))
		}
		if types {
			p.ContentTypes = append(p.ContentTypes, r.ContentType)
		}
		if headers {
			p.Headers = append(p.Headers, pgvalue.OrZero(r.Headers))
		}
	}
	return p
}

var (
	eventsTable   = pgx.Identifier{"outbox", "events"}
	eventsColumns = []string{"id", "tenant_id", "topic", "key", "content_type", "payload", "headers"}
)

// copyEvents sends the rows by COPY, unless the connection is known to refuse COPY.
func copyEvents(ctx context.Context, db DB, requests []PublishRequest, rows []eventRow) error {
	if refusesCopy(db) {
		return insertEvents(ctx, db, requests, rows, false)
	}
	if err := holdKeys(ctx, db, requests, rows); err != nil {
		return err
	}
	_, err := db.(copier).CopyFrom(ctx, eventsTable, eventsColumns,
		pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			r := &rows[i]
			var headers any // a string rather than a pointer to one, which pgx would quote as a JSON string
			if r.Headers != nil {
				headers = *r.Headers
			}
			return []any{&r.ID, &r.TenantID, r.Topic, r.Key, r.ContentType, r.Payload, headers}, nil
		}))
	rememberRefusal(db, err)
	return err
}
