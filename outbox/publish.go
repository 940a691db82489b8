package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// An Event is something that has happened. Topic names it and returns the same name for every value of the type
// ("order.paid"): 1 to 128 letters, digits and _ . : / -, the first a letter or digit. The value itself is stored as
// JSON; a [Raw] is stored unchanged.
type Event interface{ Topic() string }

// EventOptions describe an event. The zero value is an unordered event of the root tenant.
type EventOptions struct {
	Key     string            // orders it among the events of the key: see Publish. At most 512 bytes; "" is unordered
	Headers map[string]string // trace context, correlation id …; published with it. At most 64 KiB as JSON
	Tenant  ID                // zero means RootTenant
	ID      ID                // lets consumers drop repeats; zero means a new one. Uniqueness is not checked
	Check   Checker           // refuses an invalid value before anything is sent; nil means no check
	Protect Protector         // seals the payload, for consumers that can open it; nil stores it unsealed

	// Serial makes the transaction wait for every other unfinished transaction that has published an event of the same
	// tenant and Key with Serial. It needs a Key.
	Serial bool
}

// Publish stores an event through db and returns its ID. Pass the [pgx.Tx] that makes your business change: the event
// is published exactly when the change commits, to every sink of a relay, at least once, with the same ID.
//
// Events with the same tenant and Key are published in the order of the transactions that held the lock on whatever the
// key stands for. So take that lock first, as an UPDATE of its row does, and then publish. The next transaction to get
// the lock publishes after this one has ended, so its events come later in the log; the events of one transaction are
// in the order of its calls. Where transactions share no lock, there is no order to preserve.
//
// A transaction that has no row to lock sets Serial, and Publish takes a lock for it. Publish first in such a
// transaction, or read what you publish only after that call. Publish several Serial keys in the same order everywhere,
// or transactions may deadlock.
//
// A request that is not acceptable gets [*InvalidError]s, joined, before anything is sent.
func Publish(ctx context.Context, db DB, event Event, opts EventOptions) (ID, error) {
	return publish(ctx, db, event, opts, notifiesAtCommit(db, eventsChannel))
}

func publish(ctx context.Context, db DB, event Event, opts EventOptions, notify bool) (id ID, err error) {
	if t := engine.Tracing(); t != nil && event != nil {
		var span engine.Span
		ctx, span = tracePublish(ctx, t, event.Topic(), &opts)
		defer func() { endTrace(span, id, err) }()
	}
	return storeEvent(ctx, db, event, opts, notify)
}

func storeEvent(ctx context.Context, db DB, event Event, opts EventOptions, notify bool) (ID, error) {
	row, err := newEvent(ctx, NewID, event, &opts)
	if err != nil {
		return ID{}, err
	}
	row.Notify = notify
	switch tx, ok := db.(*producerTx); {
	case opts.Serial: // Publish must take the lock before it returns
		err = sqlgen.New(db).PublishSerialEvent(ctx, sqlgen.PublishSerialEventParams(row))
	case ok:
		err = sqlgen.New(tx.deferEvent(&row, event)).PublishEvent(ctx, row)
	default:
		err = sqlgen.New(db).PublishEvent(ctx, row)
	}
	if err != nil {
		return ID{}, fmt.Errorf("publish %s: %w", row.Topic, explain(err))
	}
	return ID(row.ID.Bytes), nil
}

// eventRow is an event ready to be stored.
type eventRow = sqlgen.PublishEventParams

// newEvent validates a request and returns the row to store for it.
func newEvent(ctx context.Context, newID func() ID, event Event, opts *EventOptions) (row eventRow, err error) {
	if event == nil {
		return row, invalid("Event", "is nil")
	}
	topic := event.Topic()
	errs := opts.validate()
	if err := validName("Event.Topic()", topic); err != nil {
		errs = append(errs, err)
	}
	payload, contentType, err := encode(event, ofEvent)
	if err == nil && opts.Check != nil {
		err = opts.Check.Check(topic, Content{contentType, payload})
	}
	if err != nil {
		errs = append(errs, err)
	}
	headers, err := headersJSON("EventOptions.Headers", opts.Headers)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return row, fmt.Errorf("publish %q: %w", topic, errors.Join(errs...))
	}
	id, tenant := opts.ID, opts.Tenant
	if id.IsZero() {
		id = newID()
	}
	if tenant.IsZero() {
		tenant = RootTenant
	}
	content, err := seal(ctx, opts.Protect, Part{tenant, id, "payload"}, Content{contentType, payload}, ofEvent)
	if err != nil {
		return row, fmt.Errorf("publish %q: %w", topic, err)
	}
	row = eventRow{
		ID: pgvalue.UUID(id), TenantID: pgvalue.UUID(tenant), Topic: topic, ContentType: content.Type,
		Payload: content.Bytes, Headers: headers,
	}
	if opts.Key != "" {
		row.Key = new(opts.Key) // a copy, so that the row does not keep all of the options alive
	}
	return row, nil
}

func (o *EventOptions) validate() (errs []error) {
	if err := validKey("EventOptions.Key", o.Key); err != nil {
		errs = append(errs, err)
	}
	if o.Serial && o.Key == "" {
		errs = append(errs, invalid("EventOptions.Serial", "is set, but EventOptions.Key is empty"))
	}
	return append(errs, validHeaders("EventOptions.Headers", o.Headers)...)
}
